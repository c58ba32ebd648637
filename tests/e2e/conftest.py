"""End-to-end tests: stock JAX in this process (and in child processes) against real clusters.

One cluster of two slices with four CPU devices each serves most tests, in this very process: the
environment is set here, before anything imports jax. Tests that break things start clusters of their own
through `fresh_cluster` and drive them with scripts in child processes, as a user would.

With pytest-xdist (`-n 2`, as `make test` does) each of its processes has a cluster of its own. Deadlines are for hanging
only: they are so long that no busy machine reaches them.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANDBRIDGE = ROOT / "landbridge"

# Compiles are counted, so nothing that earlier runs left on disk may be found. Tests of that name folders of their own.
os.environ["LANDBRIDGE_COMPILE_CACHE"] = "off"

# A process that a test stops for a while keeps its lease.
LONG_LEASE = [f"--{role}-arg=--lease_ms=120000" for role in ("proxy", "worker", "rm")]


class Cluster:
    """A running local cluster, as `landbridge up --json` describes it."""

    def __init__(self, state, info):
        self.state = pathlib.Path(state)
        self.info = info
        self.address = info["address"]
        self.processes = {p["name"]: p for p in info["processes"]}

    def env(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_"))}
        env.update(
            JAX_PLATFORMS="proxy",
            JAX_BACKEND_TARGET=self.address,
            PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="60",
            PYTHONUNBUFFERED="1",
        )
        env.update(extra)
        return env

    def pid(self, name):
        return self.processes[name]["pid"]

    def pids(self):
        return {name: p["pid"] for name, p in self.processes.items()}

    def log(self, name):
        return pathlib.Path(self.processes[name]["log"]).read_text()

    def status(self):
        out = subprocess.run(
            [LANDBRIDGE, "status", "--json", "--state", self.state], capture_output=True, text=True, timeout=120
        )
        assert out.returncode == 0, out.stderr + out.stdout
        return json.loads(out.stdout)

    def refresh(self):
        """Processes as they are now (a worker that was started again has a new pid)."""
        self.processes = {p["name"]: p for p in self.status()["processes"]}
        return self.processes

    def script(self, code, timeout=240, check=True, **env):
        """Runs `code` as a user's script against the cluster; returns the finished process."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=self.env(**env), capture_output=True, text=True, timeout=timeout,
        )
        if check:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        return done

    def start(self, code, **env):
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], env=self.env(**env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def down(self):
        subprocess.run([LANDBRIDGE, "down", "--state", self.state], capture_output=True, timeout=60)


def up(*args, slices=2, devices=4, workers=1):
    state = tempfile.mkdtemp(prefix="lb-")
    done = subprocess.run(
        [LANDBRIDGE, "up", "--json", "--state", state, "--slices", str(slices), "--workers-per-slice", str(workers),
         "--devices-per-worker", str(devices), *args],
        capture_output=True, text=True, timeout=180,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Cluster(state, json.loads(done.stdout))


@pytest.fixture(scope="session")
def cluster():
    return _shared


@contextlib.contextmanager
def fresh_cluster(*args, **kwargs):
    made = up(*args, **kwargs)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def own_cluster():
    """A cluster that the test may break."""
    with fresh_cluster() as made:
        yield made


_shared = None


def pytest_configure(config):
    global _shared
    # Shells start what runs in the background with SIGINT ignored, and that is inherited: clients would not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    divides_tests = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if config.option.collectonly or divides_tests or _shared is not None:
        return
    _shared = up()
    os.environ.update(
        {k: v for k, v in _shared.env().items() if k.startswith(("JAX_", "IFRT_", "PATHWAYS_"))}
    )


def pytest_unconfigure(config):
    if _shared is not None:
        _shared.down()


@pytest.fixture(autouse=True)
def same_settings():
    """Tests share a process: one that changes JAX for the next ones (or whose imports do) fails itself."""
    import jax
    assert not jax.config.jax_enable_x64, "an import has changed jax_enable_x64 for all tests of this process"
    yield
    assert not jax.config.jax_enable_x64, "this test has changed jax_enable_x64 for those after it"
