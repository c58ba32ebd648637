"""Servers started by hand, in any order, as any launcher would: without `landbridge up`."""

import contextlib
import itertools
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

from conftest import ROOT

BIN = ROOT / "build" / "release" / "bin"


def until(condition, what, seconds=90):
    """Waits for something that another process brings about; fails with its name."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return value


def alone(cluster):
    """Waits until this process is the only client of the cluster: what clients that have ended held is gone then."""
    import jax

    jax.devices()
    until(lambda: cluster.status()["proxy"]["counts"]["sessions"] == 1, "this process as the only client")


def _candidates():
    """Ports below those that the kernel hands out by itself; processes of pytest-xdist take turns with them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(12_000 + int(worker), 30_000, workers)
    start = random.randrange(len(mine))     # beside another run of the tests on the same machine
    for i in itertools.count(start):
        yield mine[i % len(mine)]


_ports = _candidates()


def free_port():
    """A port that nobody listens on, and that nobody is given who asks for any free one."""
    while True:
        port = next(_ports)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return port


class Server:
    def __init__(self, name, argv, folder, env):
        self.name = name
        self.log_path = folder / f"{name}.log"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(list(map(str, argv)), env=env, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)

    def log(self):
        return self.log_path.read_text()

    def says(self, pattern, seconds=90):
        """Waits for a log line (a regular expression) and returns the match; fails when the process ends without it."""
        def look():
            found = re.search(pattern, self.log())
            if not found and self.process.poll() is not None:
                found = re.search(pattern, self.log())
                assert found, f"{self.name} ended with {self.process.returncode} without {pattern!r}:\n{self.log()}"
            return found
        return until(look, lambda: f"{pattern!r} in the log of {self.name}:\n{self.log()}", seconds)

    def exit_code(self, seconds=90):
        return self.process.wait(timeout=seconds)

    def stop(self):
        """SIGTERM; True when it ended by itself."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=60)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class ByHand:
    """A set of servers in one folder; all are killed at the end of the `with` block."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lb-hand-"))
        self.servers = {}
        self.rm_port, self.proxy_port = free_port(), free_port()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for server in reversed(self.servers.values()):
            server.kill()

    @property
    def rm_address(self):
        return f"127.0.0.1:{self.rm_port}"

    @property
    def target(self):
        return f"grpc://127.0.0.1:{self.proxy_port}"

    def start(self, name, binary, *flags, version=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_", "LANDBRIDGE_"))}
        env["PATH"] = f"{pathlib.Path(sys.executable).parent}:{env['PATH']}"  # where the plugin's package is found
        env["LANDBRIDGE_COMPILE_CACHE"] = "off"
        if version is not None:
            env["LANDBRIDGE_VERSION_FOR_TESTS"] = version
        self.servers[name] = Server(name, [BIN / binary, *flags], self.folder, env)
        return self.servers[name]

    def rm(self, *flags, version=None):
        return self.start("rm", "landbridge-server", "--node_type=resource_manager", f"--server_port={self.rm_port}",
                          "--instance_type=cpu:2", *flags, version=version)

    def worker(self, *flags, name="worker", version=None):
        return self.start(name, "landbridge-server", f"--resource_manager_address={self.rm_address}", "--server_port=0",
                          f"--worker_name={name}", *flags, version=version)

    def proxy(self, *flags, version=None):
        return self.start("proxy", "landbridge-proxy", f"--resource_manager_address={self.rm_address}",
                          f"--server_port={self.proxy_port}", f"--port_file={self.folder}/proxy.port", *flags,
                          version=version)

    def admin_port(self):
        """Of the proxy."""
        text = until(lambda: (self.folder / "proxy.port.admin").exists() and (self.folder / "proxy.port.admin").read_text(),
                     "the proxy's admin port")
        return int(text.strip().rpartition(":")[2])


def client_env(target, timeout=60, **extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_", "LANDBRIDGE_"))}
    env.update(JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=target, PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS=str(timeout),
               PYTHONUNBUFFERED="1")
    env.update(extra)
    return env


HELLO = """
import jax, numpy as np
print("sum", float(jax.jit(lambda v: v + 1)(np.arange(4.0)).sum()), "on", len(jax.devices()), "devices")
"""


def client(target, code=HELLO, timeout=60, **env):
    """A user's script in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=client_env(target, timeout, **env),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_client(target, code=HELLO, timeout=60, seconds=180, **env):
    """(exit code, standard output, standard error) of the script."""
    process = client(target, code, timeout, **env)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


FORBIDDEN = ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")


def assert_no_forbidden_words(text):
    """pathwaysutils retries for ever on an error that holds one of these."""
    assert not any(word in text for word in FORBIDDEN), text
