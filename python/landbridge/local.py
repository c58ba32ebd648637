"""A local cluster from Python, through the command-line tool."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field


class ClusterError(RuntimeError):
    """A cluster did not start; the text is the tool's."""


@dataclass
class Cluster:
    """A running cluster. `processes`: name -> {name, pid, log}."""
    address: str
    state: str
    processes: dict
    tool: str = field(repr=False)

    def environment(self):
        """os.environ for a script that uses this cluster."""
        return {**os.environ, "JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": self.address,
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true", "LANDBRIDGE_STATE": self.state}

    def status(self):
        done = subprocess.run([self.tool, "status", "--json", "--state", self.state], capture_output=True, text=True)
        if not done.stdout:
            raise ClusterError(done.stderr.strip())
        return json.loads(done.stdout)

    def down(self):
        subprocess.run([self.tool, "down", "--state", self.state], capture_output=True, text=True)


def find_tool():
    """$LANDBRIDGE, the checkout that this file lies in, or `landbridge` on PATH."""
    candidates = [os.environ.get("LANDBRIDGE"), pathlib.Path(__file__).resolve().parents[2] / "landbridge",
                  shutil.which("landbridge")]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise ClusterError("the command-line tool `landbridge` was not found; build it with `make build`, and put it on "
                       "PATH or name it in the environment variable LANDBRIDGE")


@contextlib.contextmanager
def cluster(slices=1, workers_per_slice=1, devices_per_worker=4, state=None, arguments=(), set_environment=True):
    """Starts a local cluster and ends it at the end of the block.

    With set_environment, this process's JAX will use it: enter the block before the first JAX call (a process
    that has made its backends keeps them). The environment is put back afterwards. `arguments` go to
    `landbridge up` as they are; `state` is the cluster's folder, else a temporary one.
    """
    tool = find_tool()
    temporary = state is None
    state = str(state or tempfile.mkdtemp(prefix="landbridge-"))
    command = [tool, "up", "--json", "--state", state, "--slices", str(slices), "--workers-per-slice",
               str(workers_per_slice), "--devices-per-worker", str(devices_per_worker), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(done.stderr.strip() or f"{command} exited with code {done.returncode}")
    answer = json.loads(done.stdout)
    running = Cluster(address=answer["address"], state=answer["state"], tool=tool,
                      processes={p["name"]: p for p in answer["processes"]})
    before = {}
    try:
        if set_environment:
            for name, value in running.environment().items():
                if os.environ.get(name) != value:
                    before[name] = os.environ.get(name)
                    os.environ[name] = value
            import sys
            if "jax" in sys.modules:  # it has read the environment already
                import jax
                jax.config.update("jax_platforms", "proxy")
                jax.config.update("jax_backend_target", running.address)
        yield running
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        running.down()
        if temporary:
            shutil.rmtree(state, ignore_errors=True)
