"""Real faults on clusters of their own: killed, stopped and restarted processes."""

import os
import signal
import subprocess

import pytest

from admin import ask
from conftest import LONG_LEASE, fresh_cluster
from servers import until

PRELUDE = """
import os, signal, sys, time
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
def mesh(s):
    return Mesh(np.array([d for d in jax.devices() if d.slice_index == s]), ("x",))
def put(v, s):
    return jax.device_put(v, NamedSharding(mesh(s), P("x")))
def raises(f, word):
    try:
        f()
    except Exception as e:
        assert word in str(e), f"{word} is not in: {e}"
        return str(e)
    raise AssertionError("no error")
def await_stdin():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def wait_ready(process):
    line = process.stdout.readline()
    assert line.strip() == "ready", line + process.stderr.read()


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process, timeout=240):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit {process.returncode}\n{out[-3000:]}\n{err[-6000:]}"
    return out


def serves(cluster, name):
    """The grants that a worker serves now."""
    return [grant["grant"] for grant in ask(cluster.processes[name]["address"])["grants"]]


def test_killed_worker_is_data_loss_there_only(own_cluster):
    p = own_cluster.start(PRELUDE + """
x, y = (jax.jit(lambda v: v + 1)(put(np.zeros((8, 4), np.float32), s)) for s in (0, 1))
jax.block_until_ready((x, y))
await_stdin()
text = raises(lambda: np.asarray(x), "DATA_LOSS")
assert "worker" in text and "slice" in text, text
raises(lambda: np.asarray(jax.jit(lambda v: v + 1)(x)), "DATA_LOSS")
np.testing.assert_array_equal(np.asarray(y), np.ones((8, 4)))
np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v * 3)(y)), np.full((8, 4), 3))
x.delete()
print("done", flush=True)
""")
    wait_ready(p)
    os.kill(own_cluster.pid("worker-0-0"), signal.SIGKILL)
    until(lambda: own_cluster.status()["proxy"]["workers_lost"] == 1, "the loss")
    go(p)
    assert "done" in finish(p)


def test_worker_killed_in_the_middle_of_reads_and_transfers_is_data_loss(own_cluster):
    """Bytes are on their way in both directions; whoever waits for them hears DATA_LOSS, nobody another code."""
    p = own_cluster.start(PRELUDE + """
big = put(np.arange(8 << 20, dtype=np.float32), 0)
y = put(np.ones((8, 4), np.float32), 1)
jax.block_until_ready((big, y))
to_1 = NamedSharding(mesh(1), P("x"))
add = jax.jit(lambda v, i: v + i)
import itertools, threading
begun = threading.Barrier(3)      # each has done it once and goes on
def read():
    for i in itertools.count():
        np.asarray(add(big, i))
        if i == 0: begun.wait()
def move():
    for i in itertools.count():
        jax.device_put(add(big, i), to_1).block_until_ready()
        if i == 0: begun.wait()
texts = {}
def run(f):
    try:
        f()
        texts[f.__name__] = "no error"
    except Exception as e:
        texts[f.__name__] = str(e)
threads = [threading.Thread(target=run, args=(f,)) for f in (read, move)]
for t in threads: t.start()
begun.wait()
await_stdin()
for t in threads: t.join()
for name, text in texts.items():
    assert "DATA_LOSS" in text, f"{name}: {text}"
np.testing.assert_array_equal(np.asarray(y), np.ones((8, 4)))
print("done", flush=True)
""")
    wait_ready(p)
    os.kill(own_cluster.pid("worker-0-0"), signal.SIGKILL)
    go(p)
    assert "done" in finish(p)


def test_restarted_worker_serves_the_same_virtual_devices(own_cluster):
    p = own_cluster.start(PRELUDE + """
f = jax.jit(lambda v: v + 1)
x = f(put(np.zeros((8, 4), np.float32), 0))
x.block_until_ready()
await_stdin()
raises(lambda: np.asarray(x), "DATA_LOSS")
z = f(put(np.full((8, 4), 5, np.float32), 0))     # same virtual devices, same executable
np.testing.assert_array_equal(np.asarray(z), np.full((8, 4), 6))
raises(lambda: np.asarray(x), "DATA_LOSS")        # lost stays lost
print("done", flush=True)
""")
    wait_ready(p)
    pid = own_cluster.pid("worker-0-0")
    os.kill(pid, signal.SIGKILL)
    def again():
        now = own_cluster.refresh()["worker-0-0"]
        return now["pid"] != pid and now["alive"]
    until(again, "a new life of the worker")
    go(p)
    assert "done" in finish(p)


LEASE = [f"--{who}-arg=--{what}" for who in ("proxy", "worker", "rm") for what in ("lease_ms=3000", "heartbeat_ms=150")]


def test_stopped_worker_is_fenced_and_its_slice_serves_again():
    """SIGSTOP past the lease: DATA_LOSS; after SIGCONT nothing of the old life reaches anybody."""
    with fresh_cluster(*LEASE) as c:
        p = c.start(PRELUDE + """
x, y = (jax.jit(lambda v: v + 1)(put(np.zeros((8, 4), np.float32), s)) for s in (0, 1))
jax.block_until_ready((x, y))
z = jax.jit(lambda v: v * 2)(y)
before = np.asarray(z).tobytes()
await_stdin()
raises(lambda: np.asarray(x + 1), "DATA_LOSS")
await_stdin()
raises(lambda: np.asarray(x + 1), "DATA_LOSS")
n = jax.jit(lambda v: v + 1)(put(np.full((8, 4), 2, np.float32), 0))
np.testing.assert_array_equal(np.asarray(n), np.full((8, 4), 3))
# Large arrays too: up, down, and from slice to slice in both directions go through the data plane.
big = np.random.RandomState(0).rand(512, 1024).astype(np.float32)
up = put(big, 0)
np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(up)), big + 1)
there = jax.device_put(up, NamedSharding(mesh(1), P("x")))
back = jax.device_put(jax.jit(lambda v: v * 2)(there), NamedSharding(mesh(0), P("x")))
np.testing.assert_array_equal(np.asarray(back), big * 2)
assert np.asarray(jax.jit(lambda v: v * 2)(y)).tobytes() == before
print("done", flush=True)
""")
        wait_ready(p)
        pid = c.pid("worker-0-0")
        old = serves(c, "worker-0-0")
        os.kill(pid, signal.SIGSTOP)
        until(lambda: c.status()["proxy"]["workers_lost"] == 1, "the loss")
        go(p)
        wait_ready(p)
        os.kill(pid, signal.SIGCONT)
        until(lambda: serves(c, "worker-0-0") not in ([], old), "a new grant")
        go(p)
        assert "done" in finish(p)
        assert c.refresh()["worker-0-0"]["pid"] == pid   # the same process, under a new grant


def test_a_donor_does_not_wait_for_a_stopped_receiver(own_cluster):
    """An array is on its way to a worker that is stopped; the step that donates it runs, and the bytes arrive later."""
    p = own_cluster.start(PRELUDE + """
step = jax.jit(lambda v: v * 2 + 1, donate_argnums=0)
values = np.random.RandomState(0).rand(512, 1024).astype(np.float32)
np.asarray(step(put(values, 0)))                  # compiled
x = put(values, 0)
x.block_until_ready()
await_stdin()                                     # the other worker is stopped
there = jax.device_put(x, NamedSharding(mesh(1), P(None, "x")))
z = step(x)
np.testing.assert_array_equal(np.asarray(z), values * 2 + 1)
await_stdin()                                     # it goes on
np.testing.assert_array_equal(np.asarray(there), values)
print("done", flush=True)
""")
    wait_ready(p)
    os.kill(own_cluster.pid("worker-1-0"), signal.SIGSTOP)
    go(p)
    wait_ready(p)
    snapshots = ask(own_cluster.processes["worker-0-0"]["address"])["send_snapshots"]
    os.kill(own_cluster.pid("worker-1-0"), signal.SIGCONT)
    go(p)
    assert "done" in finish(p)
    assert (snapshots["taken"], snapshots["bytes"]) == (16, 512 * 1024 * 4), snapshots  # a piece per device and device
    state = ask(own_cluster.processes["worker-0-0"]["address"])["send_snapshots"]
    assert (state["taken"], state["waiting"]) == (16, 0)


def test_snapshots_for_a_stopped_receiver_are_bounded():
    """Four arrays of 96 MiB are on their way to a worker that is stopped, and steps donate them. Two are copied, since copies
    for this may take 256 MiB in all; the donors of the others wait until the receiver has gone on."""
    with fresh_cluster(*LONG_LEASE, slices=2, devices=1) as c:
        p = c.start(PRELUDE + """
step = jax.jit(lambda v: v.at[0].add(1), donate_argnums=0)
one, other = jax.devices()
make = jax.jit(lambda i: jnp.full(24 << 20, i, jnp.float32))
arrays = [make(jax.device_put(np.float32(i), one)) for i in range(4)]
jax.block_until_ready(step(make(jax.device_put(np.float32(9), one))))
jax.block_until_ready(jax.device_put(jnp.copy(arrays[0]), other))
jax.block_until_ready(arrays)
await_stdin()                                     # the other worker is stopped
there = [jax.device_put(a, other) for a in arrays]
stepped = [step(a) for a in arrays]
del arrays
jax.block_until_ready(stepped[:2])
await_stdin()                                     # it goes on
for i, (moved, here) in enumerate(zip(there, stepped)):
    np.testing.assert_array_equal(np.asarray(moved[:3]), np.full(3, i))
    np.testing.assert_array_equal(np.asarray(here[:3]), [i + 1, i, i])
    assert float(moved.min()) == float(moved.max()) == i
print("done", flush=True)
""")
        wait_ready(p)
        worker = c.processes["worker-0-0"]["address"]
        os.kill(c.pid("worker-1-0"), signal.SIGSTOP)
        go(p)
        wait_ready(p)
        until(lambda: ask(worker)["send_snapshots"]["waiting"] == 2, "two donors whose arrays find no room for a copy")
        snapshots = ask(worker)["send_snapshots"]
        assert snapshots == {"taken": 2, "bytes": 192 << 20, "bytes_max": 256 << 20, "waiting": 2}
        donors = [[reason["what"] for reason in launch["waits_for"]]
                  for launch in ask(worker)["grants"][0]["queues"]["launches"]]
        assert donors == [["readers"], ["readers"]], donors
        os.kill(c.pid("worker-1-0"), signal.SIGCONT)
        go(p)
        assert "done" in finish(p)
        until(lambda: ask(worker)["send_snapshots"]["bytes"] == 0, "the end of all copies")


def test_killed_client_leaves_nothing(own_cluster):
    p = own_cluster.start(PRELUDE + """
keep = [put(np.full((512, 512), i, np.float32), i % 2) for i in range(20)]
g = [jax.jit(lambda v: v + 1)(k) for k in keep]
jax.block_until_ready(g)
await_stdin()
""")
    wait_ready(p)
    def counts():
        return own_cluster.status()["proxy"]["counts"]
    assert counts()["sessions"] == 1 and counts()["arrays"] >= 40
    p.kill()
    p.wait()
    kinds = ("sessions", "arrays", "buffers", "executables", "requests", "host_buffers")
    until(lambda: not any(counts()[k] for k in kinds), lambda: f"nothing is left: {counts()}")
    own_cluster.script(PRELUDE + "assert float(jnp.sum(put(np.ones((8, 4), np.float32), 1))) == 32")


def test_ctrl_c_in_a_blocked_read_leaves_a_usable_session(own_cluster):
    p = own_cluster.start(PRELUDE + """
import landbridge
f = jax.jit(lambda v: landbridge.virtual_compute(v, duration_us=3_000_000))
x = f(np.ones(4, np.float32))
try:
    print("ready", flush=True)
    np.asarray(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
np.testing.assert_array_equal(np.asarray(x), np.ones(4))
assert float(jax.jit(lambda v: v + 1)(1.0)) == 2
print("done", flush=True)
""")
    wait_ready(p)
    # (The call itself was answered at once: what the proxy has not answered is the read.)
    until(lambda: own_cluster.status()["proxy"]["front_door"]["requests_waiting"] > 0, "the read")
    p.send_signal(signal.SIGINT)
    assert finish(p) == "interrupted\ndone\n"


def test_killed_proxy_ends_the_client_with_an_error(own_cluster):
    p = own_cluster.start(PRELUDE + """
x = jax.jit(lambda v: v + 1)(np.ones(4, np.float32))
x.block_until_ready()
await_stdin()
raises(lambda: jax.device_get(jax.jit(lambda v: v + 2)(x)), "")
""")
    wait_ready(p)
    os.kill(own_cluster.pid("proxy"), signal.SIGKILL)
    go(p)
    try:
        p.wait(timeout=120)   # the stock client raises, or aborts by itself in some paths; it must not hang
    except subprocess.TimeoutExpired:
        p.kill()
        pytest.fail("the client hung")


@pytest.mark.parametrize("fault", ["abort", "loop"])
def test_compiler_process_faults_fail_that_compile_only(fault):
    with fresh_cluster("--proxy-arg=--enable_test_faults", "--proxy-arg=--compile_timeout_ms=6000") as c:
        c.script(PRELUDE + f"""
def bad(v):
    return jax.ffi.ffi_call("landbridge_test_fault_{fault}", jax.ShapeDtypeStruct((4,), np.float32))(v)
text = raises(lambda: jax.jit(bad)(np.ones(4, np.float32)), "compil")
assert not any(w in text for w in ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")), text
assert float(jax.jit(lambda v: v + 1)(1.0)) == 2
print(text)
""")
        assert all(p["alive"] and p["starts"] == 1 for p in c.status()["processes"])
