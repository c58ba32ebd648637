"""Slices of several workers, and slices of unlike use."""

import os
import signal

import pytest

from conftest import fresh_cluster

PRELUDE = """
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
"""


@pytest.fixture(scope="module")
def cluster():
    with fresh_cluster(slices=2, workers=2, devices=2) as made:
        yield made


def test_devices_of_two_workers_per_slice(cluster):
    cluster.script(PRELUDE + """
assert [d.id for d in devices] == list(range(8))
assert [d.slice_index for d in devices] == [0] * 4 + [1] * 4, [d.slice_index for d in devices]
assert {(d.platform, d.device_kind, d.process_index) for d in devices} == {("cpu", "cpu", 0)}
assert jax.process_count() == 1 and jax.local_devices() == devices
assert len({str(d) for d in devices}) == 8
for d in devices:
    assert {m.kind for m in d.addressable_memories()} == {"device", "pinned_host", "unpinned_host"}
""")


def test_status_of_two_workers_per_slice(cluster):
    status = cluster.status()
    assert [p["name"] for p in status["processes"]] == [
        "resource-manager", "proxy", "worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"]
    assert [(s["type"], s["placed"]) for s in status["slices"]] == [("cpu:2x2", True)] * 2
    names = [s["workers"].split(", ") for s in status["slices"]]    # in the order of their places: as they came
    assert [sorted(n) for n in names] == [["worker-0-0", "worker-0-1"], ["worker-1-0", "worker-1-1"]]
    assert [(d["slice"], d["worker"], d["device"]) for d in status["devices"]] == [
        (s, name, d) for s in range(2) for name in names[s] for d in range(2)]


def test_programs_on_the_devices_of_each_worker(cluster):
    cluster.script(PRELUDE + """
f = jax.jit(lambda v: jnp.sin(v) * 2)
x = np.arange(64, dtype=np.float32).reshape(8, 8)
for d in devices:                                        # on each device
    y = f(jax.device_put(x, d))
    assert y.devices() == {d}
    np.testing.assert_array_equal(np.asarray(y), np.asarray(f(jax.device_put(x, devices[0]))))
for w in range(4):                                       # SPMD with a collective on each worker
    mesh = Mesh(np.array(devices[2 * w:2 * w + 2]), ("x",))
    g = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    y = g(jax.device_put(x, NamedSharding(mesh, P("x"))))
    np.testing.assert_array_equal(np.asarray(y), x[:4] + x[4:])
y = jax.device_put(x, devices[1])                        # from worker to worker, inside the slice and beyond
for d in (devices[2], devices[7], devices[4], devices[1]):
    y = jax.device_put(y, d) + 1
np.testing.assert_array_equal(np.asarray(y), x + 4)
""")


def test_arrays_over_the_workers_of_a_slice(cluster):
    """Data lies over several workers of a slice, and over both slices."""
    cluster.script(PRELUDE + """
x = np.arange(64, dtype=np.float32).reshape(8, 8)
for chosen in (devices[:4], devices):
    mesh = Mesh(np.array(chosen), ("x",))
    y = jax.device_put(x, NamedSharding(mesh, P("x")))
    assert [s.device for s in y.addressable_shards] == list(chosen)
    np.testing.assert_array_equal(np.asarray(y), x)
    for i, shard in enumerate(y.addressable_shards):
        n = 8 // len(chosen)
        np.testing.assert_array_equal(np.asarray(shard.data), x[n * i:n * i + n])
""")


def test_losing_one_worker_of_a_slice_loses_its_shards_only():
    with fresh_cluster(slices=1, workers=2, devices=2) as c:
        second = c.status()["slices"][0]["workers"].split(", ")[1]     # holds devices 2 and 3
        p = c.start(PRELUDE + f"second = {second!r}" + """
import sys
f = jax.jit(lambda v: v + 1)
a, b = f(jax.device_put(np.ones(4), devices[0])), f(jax.device_put(np.ones(4), devices[2]))
jax.block_until_ready((a, b))
print("ready", flush=True)
sys.stdin.readline()
try:
    np.asarray(b)
    raise SystemExit("no error")
except Exception as e:
    assert "DATA_LOSS" in str(e) and f"lost worker {second} on" in str(e) and f"/{second}.log" in str(e), str(e)
np.testing.assert_array_equal(np.asarray(a), np.full(4, 2))
np.testing.assert_array_equal(np.asarray(f(a)), np.full(4, 3))
np.testing.assert_array_equal(np.asarray(f(jax.device_put(np.ones(4), devices[3]))), np.full(4, 2))  # its next life
print("done", flush=True)
""")
        assert p.stdout.readline() == "ready\n"
        os.kill(c.pid(second), signal.SIGKILL)
        p.stdin.write("\n")
        out, err = p.communicate(timeout=240)
        assert out == "done\n", err
