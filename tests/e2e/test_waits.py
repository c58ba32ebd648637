"""What waits for what: `landbridge status` and `landbridge why` while work is held up."""

import contextlib
import os
import re
import signal
import subprocess
from concurrent import futures

import wire
from conftest import LANDBRIDGE, LONG_LEASE, fresh_cluster
from servers import until

PRELUDE = """
import sys
import numpy as np, jax, jax.numpy as jnp
import landbridge
devices = jax.devices()
one = [d for d in devices if d.slice_index == 0][0]
two = [d for d in devices if d.slice_index == 1][0] if any(d.slice_index == 1 for d in devices) else None
def hold(us):
    @jax.jit
    def held(v):
        return landbridge.virtual_compute(v + 1, duration_us=us)
    return held
@jax.jit
def after(v):
    return v * 2
def say():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def why(cluster, *args):
    return subprocess.run([LANDBRIDGE, "why", "--state", cluster.state, *args], capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def dispatched(cluster, code):
    """Runs until it says that all is dispatched; must end well when let go."""
    process = cluster.start(PRELUDE + code)
    try:
        line = process.stdout.readline()
        assert line == "ready\n", process.communicate()
        yield process
        process.stdin.write("\n")
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err
    finally:
        process.kill()
        process.wait()


def parked(cluster, condition):
    """The first row of `parked` that fits."""
    return until(lambda: next((row for row in cluster.status()["parked"] if condition(row)), None),
                 lambda: f"such a row in {cluster.status()['parked']}")


def test_input_from_another_slice(own_cluster):
    with dispatched(own_cluster, """
h = hold(8_000_000)
warm = after(jax.device_put(hold(1)(jax.device_put(np.ones(4, np.float32), two)), one)); warm.block_until_ready()
h.lower(jax.device_put(np.ones(4, np.float32), two)).compile()
x = h(jax.device_put(np.ones(4, np.float32), two))
y = after(jax.device_put(x, one))
say()
np.testing.assert_array_equal(np.asarray(y), np.full(4, 4))
"""):
        row = parked(own_cluster, lambda r: r["what"] == "launch jit_after")
        assert row["where"] == "slice0/0" and row["state"] == "waiting" and re.fullmatch(r"s\d+", row["session"])
        assert re.search(r"^input a\d+\.0 on slice0/0 device 0 <- t\d+ copy to a\d+\.0 .*<- bytes of slice1/0 <- send of "
                         r"a\d+\.0 .*<- input a\d+\.0 on slice1/0 device 0 <- t\d+ launch jit_held of s\d+ on slice1/0 "
                         r"devices 0, running for ", row["waits_for"]), row
        text = subprocess.run([LANDBRIDGE, "status", "--state", own_cluster.state], capture_output=True, text=True,
                              timeout=120).stdout
        assert "parked" in text and "launch jit_after" in text and "jit_held" in text
        asked = ((), (row["session"],), (row["ticket"],), (row["ticket"][1:],))
        with futures.ThreadPoolExecutor(len(asked)) as pool:      # all at once: the held launch ends some time
            answers = list(pool.map(lambda args: why(own_cluster, *args), asked))
        for done in answers:
            assert done.returncode == 0
            assert f"{row['ticket']} launch jit_after of {row['session']} on slice0/0 devices 0, waiting" in done.stdout
            assert re.search(r"\n +t\d+ launch jit_held of s\d+ on slice1/0 devices 0, running", done.stdout), done.stdout
        assert why(own_cluster, "s99").stdout == "nothing of s99 waits: it has ended, or it never was\n"
    until(lambda: why(own_cluster).stdout == "nothing waits\n", lambda: f"an idle cluster: {why(own_cluster).stdout}")


def test_credit_of_the_device(own_cluster):
    with dispatched(own_cluster, """
h = hold(300_000)
x = jax.device_put(np.ones(4, np.float32), one)
h(x).block_until_ready()
ys = [h(x) for _ in range(16)]
say()
jax.block_until_ready(ys)
"""):
        row = parked(own_cluster, lambda r: r["state"] == "runnable")
        assert row["what"] == "launch jit_held"
        assert re.fullmatch(r"credit of device 0 of slice0/0: \d+ launches are placed there", row["waits_for"]), row


def test_memory():
    with fresh_cluster(f"--worker-arg=--device_memory_limit={64 << 20}", slices=1, devices=1) as cluster:
        with dispatched(cluster, """
def big(us):
    @jax.jit
    def big(v):
        return jnp.zeros((10 << 20,), jnp.float32) + landbridge.virtual_compute(v, duration_us=us)
    return big.lower(v).compile()
v = jax.device_put(np.float32(1), one)
long, short = big(5_000_000), big(1)
a = long(v)
del a
b = short(v)
say()
assert float(b[0]) == 1
"""):
            row = parked(cluster, lambda r: "memory" in r["waits_for"])
            assert row["what"] == "launch jit_big" and row["where"] == "slice0/0"
            assert re.match(r"memory on slice0/0 device 0: \d+ (MiB|KiB|bytes) wanted, \d+ MiB of 64 MiB in use",
                            row["waits_for"]), row


def test_a_slice_without_a_worker():
    with fresh_cluster("--on-worker-loss", "continue", slices=1, devices=1) as cluster:
        process = cluster.start(PRELUDE + """
x = after(jax.device_put(np.ones(4, np.float32), one)); x.block_until_ready()
say()
y = after(jax.device_put(np.ones(4, np.float32), one))
say()
np.testing.assert_array_equal(np.asarray(y), np.full(4, 2))
""")
        try:
            assert process.stdout.readline() == "ready\n"
            os.kill(cluster.pid("worker-0-0"), signal.SIGKILL)
            until(lambda: cluster.status()["proxy"]["workers_lost"] == 1, "the loss")
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            row = parked(cluster, lambda r: r["what"] == "launch jit_after")
            assert row["state"] == "parked" and row["where"] == "slice0/0", row
            assert "a worker at slice0/0" in row["waits_for"], row
            assert f"{row['ticket']} launch jit_after of {row['session']} on slice0/0, parked" in why(cluster).stdout
            subprocess.run([LANDBRIDGE, "restart", "--state", cluster.state, "worker-0-0"], check=True, timeout=180,
                           capture_output=True)
            process.stdin.write("\n")
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, err
        finally:
            process.kill()
            process.wait()


def test_a_worker_that_is_silent():
    """A stopped worker cannot say what it does; the proxy says what it was sent, and since when."""
    with fresh_cluster(*LONG_LEASE, slices=2, devices=1) as cluster:
        with dispatched(cluster, """
x = jax.device_put(np.ones(4, np.float32), one)
after(x).block_until_ready()
say()
ys = [after(x) for _ in range(3)]
z = after(jax.device_put(np.ones(4, np.float32), two)).block_until_ready()
say()
jax.block_until_ready(ys)
""") as process:
            os.kill(cluster.pid("worker-0-0"), signal.SIGSTOP)
            try:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "ready\n"
                row = parked(cluster, lambda r: r["where"] == "slice0/0" and r["state"] == "waiting")
                assert row["age_ms"] >= 1000 and "which is silent" in row["waits_for"] and "worker-0-0" in row["waits_for"]
                assert "an answer of worker slice0/0 (worker worker-0-0" in why(cluster).stdout
                # Explanations wait for the silent worker, a second each; only so many at one time.
                port = int((cluster.state / "ports" / "proxy.admin").read_text().rpartition(":")[2])
                answers = wire.ask_many(port, [{"what": "explain"}] * 70)
                assert sum(a["ok"] for a in answers) == 64
                assert all("64 explanations are under way already" in a["error"] for a in answers if not a["ok"])
            finally:
                os.kill(cluster.pid("worker-0-0"), signal.SIGCONT)
