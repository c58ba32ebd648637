"""Threads, clients side by side, leaks."""

import threading

import jax
import numpy as np
import psutil

from conftest import fresh_cluster
from test_flat import LOAD, QUIET, assert_memory_back, assert_no_objects, at_rest, most, steps


def test_sixteen_threads():
    f = jax.jit(lambda v, i: v * 2 + i)
    errors = []

    def work(i):
        try:
            d = jax.devices()[i % 8]
            x = jax.device_put(np.full((64,), i, np.float32), d)
            for _ in range(30):
                x = f(x, 0.0) / 2
            np.testing.assert_array_equal(np.asarray(x), np.full(64, i, np.float32))
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors[0]


def test_two_clients_at_once(cluster):
    code = """
import numpy as np, jax, sys
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
me = int(sys.stdin.readline())
m = Mesh(np.array(jax.devices()[:4]), ("x",))
f = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x") + v, mesh=m, in_specs=P("x"), out_specs=P("x")))
x = np.full((4, 8), me, np.float32)
for _ in range(100):
    y = f(x)
    np.testing.assert_array_equal(np.asarray(y), 5 * x)
"""
    ps = [cluster.start(code) for _ in range(2)]
    for i, p in enumerate(ps):
        p.stdin.write(f"{i + 1}\n")
        p.stdin.flush()
    for p in ps:
        out, err = p.communicate(timeout=240)
        assert p.returncode == 0, err[-4000:]


# 80 MB of arrays per round, on four devices of one worker; nothing of them is left when a round has ended.
ROUNDS = LOAD.replace("range(2)", "range(1)", 1) + """
f = jax.jit(lambda v: v + 1)
while True:
    keep = [f(put(np.full((256, 1024), i, np.float32), 0)) for i in range(40)]
    jax.block_until_ready(keep)
    del keep
    tell("round")
"""


def test_deletion_frees_everything():
    """No object, and the worker's memory within 5 % of what it was."""
    with fresh_cluster(slices=1) as cluster:
        process = cluster.start(ROUNDS, **QUIET)

        def one():
            assert steps(process) == "round"

        def rest():
            assert_no_objects(cluster)
            return at_rest(cluster)

        try:
            assert process.stdout.readline() == "round\n", process.communicate()
            warm = [rest()]
            for _ in range(2):
                one()
                warm.append(rest())
            for _ in range(5):
                one()
            assert_no_objects(cluster)
            assert_memory_back(cluster, most(warm), one)
        finally:
            process.kill()
            process.wait()


def test_user_contexts_are_released():
    """30,000 calls: the client's memory stays flat, so the server reports each traceback back."""
    f = jax.jit(lambda v: v + 1)
    x = f(np.float32(0))
    me = psutil.Process()

    def run(n, x):
        for i in range(n):
            x = f(x)
            if i % 1000 == 0:
                x.block_until_ready()
        return x.block_until_ready()

    x = run(10_000, x)
    rss = me.memory_info().rss
    x = run(20_000, x)
    assert float(x) == 30_001
    assert me.memory_info().rss - rss < 6e6, (me.memory_info().rss - rss) / 1e6
