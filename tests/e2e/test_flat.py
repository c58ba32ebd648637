"""After any load the cluster is as before: no object, no thread, no file descriptor, no memory more."""

import pathlib
import re
import time

import psutil
import pytest

from conftest import fresh_cluster
from servers import until

# A bit of everything; each call leaves nothing behind.
LOAD = """
import gc, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
meshes = [Mesh(np.array([d for d in devices if d.slice_index == s]), ("x",)) for s in range(2)]
def put(v, s):
    return jax.device_put(v, NamedSharding(meshes[s], P("x")))
step = jax.jit(lambda v: v * 2 + 1, donate_argnums=0)
grad = jax.jit(jax.grad(lambda v: (v ** 2).sum()))
too_big = jax.jit(lambda: jnp.zeros((1 << 42,), jnp.float32))
def load(rounds, size):
    for i in range(rounds):
        x = put(np.full((8, size), i, np.float32), i % 2)
        for _ in range(5):
            x = step(x)
        y = jax.device_put(x, NamedSharding(meshes[1 - i % 2], P("x")))     # to the other slice
        assert float(np.asarray(grad(y))[0, 0]) == 2 * (32 * i + 31)
        parts = [s.data for s in y.addressable_shards]
        np.asarray(parts[-1])
        try:
            too_big().block_until_ready()
            raise SystemExit("no error")
        except Exception as e:
            assert "RESOURCE_EXHAUSTED" in str(e), e
        z = y.copy(); z.delete()
        s = jax.device_put(np.array(["text", "more"], dtype=np.dtypes.StringDType()), devices[0])
        assert np.asarray(s)[0] == "text"
def tell(what):
    gc.collect()
    (jnp.zeros(()) + 1).block_until_ready()       # deletions travel with the next request
    print(what, flush=True)
    sys.stdin.readline()
"""

# The stock client writes a line to standard error for each failed request; nobody reads it here.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

OBJECTS = ("arrays", "buffers", "host_buffers", "requests", "transfers", "launches_unfinished", "ops_parked")


class Figures:
    """Of one process."""

    def __init__(self, pid):
        process = psutil.Process(pid)
        self.rss = process.memory_info().rss
        self.threads = process.num_threads()
        self.fds = process.num_fds()


def figures(cluster):
    return {name: Figures(pid) for name, pid in cluster.pids().items()}


def steps(process):
    """One step of the client: lets it go on and returns what it says next."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def bytes_in_use(cluster):
    return sum(d["bytes_in_use"] for d in cluster.status()["devices"])


def assert_no_more(cluster, before):
    """Threads and file descriptors; what ends late (a connection) is given its time. gRPC keeps 1 to 3 pollers."""
    def more():
        return [(n, f.threads, before[n].threads, f.fds, before[n].fds) for n, f in figures(cluster).items()
                if f.threads > before[n].threads + 2 or f.fds > before[n].fds + 2]
    until(lambda: not more(), lambda: f"as few threads and descriptors: {more()}", 15)


def assert_memory_back(cluster, before):
    """RSS within 5 % of what it was (a process of 30 MB: within the 4 MB by which malloc's arenas differ)."""
    def more():
        return [(n, before[n].rss, f.rss) for n, f in figures(cluster).items()
                if f.rss > before[n].rss + max(before[n].rss // 20, 4 << 20)]
    until(lambda: not more(), lambda: f"RSS as it was: {more()}", 30)


def settled(cluster):
    """Figures of idle processes: memory goes back to the system when a process has nothing to do for a second."""
    def steady():
        before = figures(cluster)
        time.sleep(1.5)
        now = figures(cluster)
        return all(abs(now[n].rss - before[n].rss) < 1 << 20 for n in now) and now
    return until(steady, "steady processes", 40)


def assert_no_objects(cluster):
    def left():
        counts = cluster.status()["proxy"]["counts"]
        return {k: counts[k] for k in OBJECTS if counts[k] != 0}
    until(lambda: not left(), lambda: f"no object: {left()}", 20)
    until(lambda: bytes_in_use(cluster) == 0, "empty devices")


def test_everything_is_as_before(own_cluster):
    cluster = own_cluster
    process = cluster.start(LOAD + """
for what in ("warm", "loaded", "again"):
    load(60, 64 << 10)
    tell(what)
jax.clear_caches()
del step, grad, too_big
tell("cleared")
""", **QUIET)
    try:
        assert process.stdout.readline() == "warm\n", process.communicate()
        assert_no_objects(cluster)
        executables = cluster.status()["proxy"]["counts"]["executables"]
        warm = settled(cluster)
        assert steps(process) == "loaded"
        assert_no_objects(cluster)
        before = settled(cluster)
        for name, then in warm.items():     # of two equal loads the one that left more: a third may not leave more
            before[name].rss = max(before[name].rss, then.rss)
            before[name].threads = max(before[name].threads, then.threads)
        assert steps(process) == "again"
        assert_no_objects(cluster)
        assert cluster.status()["proxy"]["counts"]["executables"] == executables      # the same programs again
        assert_no_more(cluster, before)
        assert_memory_back(cluster, before)

        assert steps(process) == "cleared"
        until(lambda: cluster.status()["proxy"]["counts"]["executables"] <= 2,   # of tell itself
              lambda: f"no executables: {cluster.status()['proxy']['counts']}", 20)
        process.stdin.write("\n")
        process.communicate(timeout=30)
        assert process.returncode == 0
        until(lambda: not any(cluster.status()["proxy"]["counts"].values()),
              lambda: f"nothing: {cluster.status()['proxy']['counts']}", 20)
    finally:
        process.kill()
        process.wait()


def test_clients_that_come_and_go_leave_nothing(own_cluster):
    """Clients one after the other, each killed in the middle of its work."""
    code = LOAD + "print('go', flush=True)\nload(10_000, 16 << 10)"

    def one():
        process = own_cluster.start(code, **QUIET)
        assert process.stdout.readline() == "go\n", process.communicate()
        until(lambda: own_cluster.status()["proxy"]["counts"]["arrays"] > 0 or process.poll() is not None, "work")
        process.kill()
        process.wait()
        until(lambda: not any(own_cluster.status()["proxy"]["counts"].values()),
              lambda: f"nothing: {own_cluster.status()['proxy']['counts']}", 30)
        return figures(own_cluster)

    first = [one() for _ in range(3)]
    before = {name: max((round_[name] for round_ in first), key=lambda f: f.rss) for name in first[0]}
    for _ in range(6):
        one()
    assert_no_more(own_cluster, before)
    assert_memory_back(own_cluster, before)
    # What workers told with their last heartbeats.
    until(lambda: bytes_in_use(own_cluster) == 0, lambda: f"nothing in devices: {bytes_in_use(own_cluster)} bytes", 15)


def peak_rss(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10


def test_a_large_array_is_held_once(own_cluster):
    """256 MB up and down: the worker holds the array, and everything else streams through a few chunks.

    The bounds are wide: bench/stock_door.py measures the figures. A second copy anywhere would break them.
    """
    size = 256 << 20
    process = own_cluster.start(LOAD + f"""
x = np.ones(({size} // 4096 // 4, 4096), np.float32)
tell("warm")
y = jax.device_put(x, devices[0])
y.block_until_ready()
back = np.asarray(jax.jit(lambda v: v, donate_argnums=0)(y))
assert back.nbytes == {size} and back[-1, -1] == 1
tell("done")
""", **QUIET)
    try:
        assert process.stdout.readline() == "warm\n", process.communicate()
        pids = own_cluster.pids()
        before = {}
        for name, pid in pids.items():
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")       # the peak counts from now
            before[name] = psutil.Process(pid).memory_info().rss
        assert steps(process) == "done"
        beyond = {name: peak_rss(pid) - before[name] for name, pid in pids.items()}
        assert beyond["proxy"] < 160 << 20, beyond
        assert beyond["worker-0-0"] < size + (160 << 20), beyond
        assert beyond["worker-1-0"] < 32 << 20 and beyond["resource-manager"] < 16 << 20, beyond
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("pending", [1, 4000])
def test_threads_do_not_depend_on_pending_work(pending):
    with fresh_cluster(slices=1, devices=2) as cluster:
        process = cluster.start(LOAD.replace("range(2)", "range(1)", 1) + f"""
import landbridge
h = jax.jit(lambda v: landbridge.virtual_compute(v + 1, duration_us=2_000_000))
f = jax.jit(lambda v: v + 1)
x = jax.device_put(np.zeros(4, np.float32), devices[0])
f(h(x)).block_until_ready()
tell("warm")
y = h(x)
for _ in range({pending}):
    y = f(y)
tell("pending")
assert float(y[0]) == 1 + {pending}
tell("done")
""")
        try:
            assert process.stdout.readline() == "warm\n", process.communicate()
            before = figures(cluster)
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: cluster.status()["proxy"]["counts"]["launches_unfinished"] >= pending, "work in the queues")
            now = figures(cluster)
            assert {n: f.threads for n, f in now.items()} == {n: f.threads for n, f in before.items()}
            assert process.stdout.readline() == "pending\n"
            assert steps(process) == "done"
            process.communicate("\n", timeout=30)
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait()
