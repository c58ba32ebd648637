"""Wide and long: thousands of leaves, hundreds of thousands of arrays, long loops. What is counted is what travels and
what is left; how long it takes is for bench/wide.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from conftest import LONG_LEASE, fresh_cluster
from servers import alone, until
from test_spmd import mesh_of

LEAVES = 5000


def traffic(cluster):
    """What the proxy has sent to the workers: {ops, frames, bytes}, summed, and its turns with anything to send."""
    proxy = cluster.status()["proxy"]
    workers = [w["control"] for s in proxy["slices"] for w in s["workers"]]
    return {**{k: sum(w[k] for w in workers) for k in ("ops", "frames", "bytes")}, "flushes": proxy["flushes"]}


class Traffic:
    def __init__(self, cluster):
        self.cluster = cluster

    def __enter__(self):
        self.before = traffic(self.cluster)
        return self

    def __exit__(self, *_):
        now = traffic(self.cluster)
        for key in now:
            setattr(self, key, now[key] - self.before[key])


def test_a_tree_of_5000_leaves_is_at_most_one_message_per_worker_and_wake_up(cluster):
    alone(cluster)
    tree = {f"leaf{i}": np.float32(i) for i in range(LEAVES)}
    f = jax.jit(lambda t: jax.tree.map(lambda v: v + 1, t))
    on_device = jax.block_until_ready(jax.device_put(tree, jax.devices()[0]))
    jax.block_until_ready(f(on_device))
    with Traffic(cluster) as one:
        on_device = f(on_device)
        jax.block_until_ready(on_device)
    assert one.frames <= 2 * one.flushes            # two workers
    assert one.ops < LEAVES / 10, one.ops           # a launch, a wait, deletes by the hundred
    with Traffic(cluster) as copy:
        there = jax.device_put(on_device, jax.devices()[4])
        jax.block_until_ready(there)
    assert copy.frames <= 2 * copy.flushes
    assert float(there["leaf4999"]) == 5000 and float(there["leaf0"]) == 1


def test_a_step_of_1000_arguments_sends_what_changed(cluster):
    """Two slices' worth of devices each get their own step; neither names its arguments one by one."""
    alone(cluster)
    sharding = NamedSharding(mesh_of(0), P())
    step = jax.jit(lambda params, x: [p * 0.5 + x for p in params], donate_argnums=0)
    params = jax.jit(lambda: [jnp.full((4,), i, jnp.float32) for i in range(1000)], out_shardings=sharding)()
    x = jax.device_put(np.float32(1), sharding)
    for _ in range(3):
        params = step(params, x)
    jax.block_until_ready(params)
    with Traffic(cluster) as steps:
        for _ in range(20):
            params = step(params, x)
        jax.block_until_ready(params)
    # In full, ids alone are 2 x 8 bytes x 1,000 a step.
    assert steps.bytes / 20 < 3000, steps.bytes / 20
    want = np.float32(999)
    for _ in range(23):
        want = want * np.float32(0.5) + np.float32(1)
    np.testing.assert_array_equal(np.asarray(params[999]), np.full(4, want))


def test_a_sharded_program_is_one_node(cluster):
    """And a sharded array is one reference: nothing is sent, counted or deleted per shard."""
    alone(cluster)
    sharding = NamedSharding(mesh_of(0), P("x"))
    f = jax.jit(lambda v: v + 1, out_shardings=sharding)
    x = jax.block_until_ready(f(jax.device_put(np.zeros(8, np.float32), sharding)))
    buffers = cluster.status()["proxy"]["counts"]["buffers"]
    with Traffic(cluster) as hundred:
        for _ in range(100):
            x = f(x)
        x.block_until_ready()
    assert hundred.ops <= 2 * 100 + 20, hundred.ops   # launches, deletes of what they took
    until(lambda: cluster.status()["proxy"]["counts"]["buffers"] <= buffers + 2, "the end of the buffers")


@pytest.mark.timeout(600)
def test_200_000_live_arrays_and_their_end():
    with fresh_cluster(slices=1, devices=1) as c:
        p = c.start("""
import jax, jax.numpy as jnp, numpy as np, sys
f = jax.jit(lambda x: [x + i for i in range(5000)])
x = jax.device_put(np.float32(1), jax.devices()[0])
keep = [f(x) for _ in range(40)]
jax.block_until_ready(keep)
assert float(keep[39][4999]) == 5000 and float(keep[0][0]) == 1
print("kept", flush=True)
sys.stdin.readline()
del keep
jax.block_until_ready(x + 1)
print("gone", flush=True)
sys.stdin.readline()
""")
        assert p.stdout.readline().strip() == "kept", p.stderr.read()
        before = traffic(c)
        counts = c.status()["proxy"]["counts"]
        assert counts["arrays"] >= 200_000 and counts["launches_unfinished"] == 0
        p.stdin.write("\n")
        p.stdin.flush()
        assert p.stdout.readline().strip() == "gone", p.stderr.read()
        until(lambda: c.status()["proxy"]["counts"]["buffers"] < 20, "the end of the buffers")
        after = traffic(c)
        assert after["ops"] - before["ops"] < 2 * 200_000 / 50, "deletes travel one by one"
        p.stdin.write("\n")
        p.stdin.flush()
        p.communicate(timeout=240)
        assert p.returncode == 0


@pytest.mark.timeout(600)
def test_a_long_loop_leaves_nothing(cluster):
    alone(cluster)
    f = jax.jit(lambda v: v + 1)
    x = jax.device_put(np.float32(0), jax.devices()[0])
    for _ in range(100):
        x = f(x)
    x.block_until_ready()
    before = cluster.status()["proxy"]["counts"]
    for _ in range(20_000):
        x = f(x)
    x.block_until_ready()
    assert float(x) == 20_100
    until(lambda: cluster.status()["proxy"]["counts"]["buffers"] <= before["buffers"] + 4, "the end of the buffers")
    after = cluster.status()["proxy"]["counts"]
    for key in ("arrays", "executables", "requests", "transfers", "host_buffers", "launches_unfinished"):
        assert after[key] <= before[key] + 4, (key, before, after)
