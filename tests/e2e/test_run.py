"""`landbridge run`, `up`, `down` and `status` with the real servers: what is passed on, and that nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from conftest import LANDBRIDGE, fresh_cluster
from servers import until

SMALL = ("--slices", "2", "--devices-per-worker", "2")

# Says who it is, makes its own child, computes, and then does what the test wants.
SCRIPT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
interrupts = []
{compute}
{setup}
print("ready", os.getpid(), child.pid, flush=True)
{body}
"""
COMPUTE = """
import jax, numpy as np
y = jax.jit(lambda v: v * 2)(np.arange(4.0))
assert float(y.sum()) == 12
"""


class Run:
    """A `landbridge run` in a session of its own, as a terminal would have it.

    The script is a client of the cluster (`compute`) where that can matter: where it hears of something itself.
    """

    def __init__(self, state, body, setup="", command=None, compute=COMPUTE):
        self.state = state
        code = SCRIPT.format(compute=compute, setup=textwrap.dedent(setup), body=textwrap.dedent(body))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "LANDBRIDGE_"))}
        env["LANDBRIDGE_COMPILE_CACHE"] = "off"
        self.process = subprocess.Popen(
            [LANDBRIDGE, "run", *SMALL, "--state", state, "--", *(command or [sys.executable, "-c"]), code],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        line = self.process.stdout.readline().split()
        assert line and line[0] == "ready", self.process.communicate()
        self.script, self.child = int(line[1]), int(line[2])
        described = json.loads((state / "cluster.json").read_text())
        self.servers = {p["name"]: p["pid"] for p in described["processes"]}
        # Everything that descends from it now, the compiler processes of the proxy included.
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        pids = {p.pid for p in self.family}
        assert set(self.servers.values()) | {self.script, self.child} <= pids
        assert len(self.servers) == 4

    def end(self, seconds=180):
        """(exit code, output, errors); checks that nothing is left of it."""
        out, err = self.process.communicate(timeout=seconds)
        until(lambda: not self.alive(), lambda: f"no orphans: {self.alive()}")
        assert not (self.state / "cluster.json").exists()
        return self.process.returncode, out, err

    def alive(self):
        return [p for p in self.family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


COUNT_INTERRUPTS = "signal.signal(signal.SIGINT, lambda *_: interrupts.append(time.monotonic()))"
UNTIL_INTERRUPTED = """
while not interrupts:
    time.sleep(0.01)
time.sleep(1)
print("interrupts", len(interrupts), flush=True)
child.kill()
sys.exit(7)
"""


@pytest.mark.parametrize("to", ["the process group", "landbridge alone"])
def test_sigint_reaches_the_script_once(tmp_path, to):
    """The script decides what Ctrl-C means; its exit code and output are passed on."""
    run = Run(tmp_path / "state", UNTIL_INTERRUPTED, COUNT_INTERRUPTS)
    if to == "the process group":
        os.killpg(run.process.pid, signal.SIGINT)
    else:
        run.process.send_signal(signal.SIGINT)
    code, out, err = run.end()
    assert (code, out) == (7, "interrupts 1\n"), err
    assert f"the logs of the servers are in {run.state}/logs" in err


def test_sigint_alone_after_one_to_the_group(tmp_path):
    run = Run(tmp_path / "state", """
        while len(interrupts) < 2:
            time.sleep(0.01)
            if len(interrupts) == 1 and sys.stdout: print("one", flush=True); sys.stdout = None
        sys.__stdout__.write("two\\n")
        child.kill()
        """, COUNT_INTERRUPTS)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.stdout.readline() == "one\n"
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end()
    assert (code, out) == (0, "two\n"), err


@pytest.mark.parametrize("to", ["the process group", "landbridge alone"])
def test_sigint_ends_a_script_that_does_nothing_about_it(tmp_path, to):
    """KeyboardInterrupt, as without Landbridge; the script's own child, which ignores the signal, ends too."""
    run = Run(tmp_path / "state", "time.sleep(1000)",
              'child.kill(); child = subprocess.Popen(["sh", "-c", "trap : INT TERM; while :; do sleep 1; done"])')
    if to == "the process group":
        os.killpg(run.process.pid, signal.SIGINT)
    else:
        run.process.send_signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 128 + signal.SIGINT and "KeyboardInterrupt" in err


def test_sigterm_ends_everything(tmp_path):
    run = Run(tmp_path / "state", "time.sleep(1000)", compute="")
    run.process.terminate()
    code, _, _ = run.end()
    assert code == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["resource-manager", "proxy", "worker-0-0", "worker-1-0"])
def test_kill_9_of_a_server_ends_the_script_and_says_why(tmp_path, name):
    run = Run(tmp_path / "state", "time.sleep(1000)", compute=COMPUTE if name == "proxy" else "")
    os.kill(run.servers[name], signal.SIGKILL)
    code, _, err = run.end()
    assert code == 70
    assert f"landbridge: {name} was killed by signal 9 (Killed). Its log is {run.state}/logs/{name}.log and ends with:" in err


def test_kill_9_of_the_script(tmp_path):
    run = Run(tmp_path / "state", "time.sleep(1000)", compute="")
    os.kill(run.script, signal.SIGKILL)
    code, _, _ = run.end()
    assert code == 128 + signal.SIGKILL


def test_kill_9_of_the_script_under_a_shell(tmp_path):
    """A crash of a server must end the script also when it is a grandchild."""
    run = Run(tmp_path / "state", "time.sleep(1000)", compute="",
              command=["sh", "-c", f'{sys.executable} -c "$0"; echo never'])
    os.kill(run.servers["worker-1-0"], signal.SIGKILL)
    code, out, _ = run.end()
    assert code == 70 and "never" not in out


def test_kill_9_of_landbridge_itself(tmp_path):
    run = Run(tmp_path / "state", "time.sleep(1000)")
    run.process.kill()
    run.process.wait()   # (not its output's end: the script's own child holds that too)
    # What the script itself has started is not ours to know any more.
    ours = [p for p in run.family if p.pid != run.child]
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ours), "no orphans")
    psutil.Process(run.child).kill()


def test_exit_code_and_both_outputs_are_passed_through(tmp_path):
    done = subprocess.run([LANDBRIDGE, "run", "--quiet", "--devices-per-worker", "2", "--", sys.executable, "-c",
                           "import sys, jax; print(len(jax.devices())); print('to stderr', file=sys.stderr); sys.exit(37)"],
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 37 and done.stdout == "2\n" and "to stderr\n" in done.stderr


def test_standard_input_reaches_the_script():
    done = subprocess.run([LANDBRIDGE, "run", "-q", "--devices-per-worker", "1", "--", "cat"], input="through\n",
                          capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


def test_a_run_inside_an_up_and_three_ups_side_by_side():
    """Any number of clusters: each client sees its own; `status` and `down` touch only theirs."""
    with fresh_cluster(slices=1, devices=1) as a, fresh_cluster(slices=1, devices=2) as b, fresh_cluster(slices=2, devices=2) as c:
        assert len({x.address for x in (a, b, c)}) == 3
        count = "import jax; print(len(jax.devices()), float(jax.jit(lambda v: v + 1)(1.0)))"
        clients = [(x.start(count), x, n) for x, n in ((a, 1), (b, 2), (c, 4))]
        inner = subprocess.run([LANDBRIDGE, "run", "-q", "--devices-per-worker", "3", "--", sys.executable, "-c", count],
                               env=b.env(), capture_output=True, text=True, timeout=240)
        assert inner.stdout == "3 2.0\n", inner.stderr
        for client, x, n in clients:
            out, err = client.communicate(timeout=240)
            assert out == f"{n} 2.0\n", err
            assert len(x.status()["devices"]) == n
        pids = b.pids()
        b.down()
        assert not any(psutil.pid_exists(pid) for pid in pids.values())
        gone = subprocess.run([LANDBRIDGE, "status", "--json", "--state", b.state], capture_output=True, text=True, timeout=120)
        assert gone.returncode == 3 and json.loads(gone.stdout)["running"] is False
        for x, n in ((a, 1), (c, 4)):
            assert x.status()["running"] and x.script(count).stdout == f"{n} 2.0\n"
