"""Threads, clients side by side, leaks."""

import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from test_spmd import mesh_of
from jax.sharding import NamedSharding, PartitionSpec as P


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
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0, err[-4000:]


def settled(cluster, before, keys, timeout=20):
    deadline = time.time() + timeout
    while True:
        now = cluster.status()["proxy"]["counts"]
        if all(now[k] <= before[k] for k in keys) or time.time() > deadline:
            return now
        time.sleep(0.1)


def test_deletion_frees_everything(cluster):
    sh = NamedSharding(mesh_of(0), P("x"))
    f = jax.jit(lambda v: v + 1)
    f(jax.device_put(np.zeros((256, 1024), np.float32), sh)).block_until_ready()
    gc.collect()
    jnp.zeros(()).block_until_ready()
    before = cluster.status()["proxy"]["counts"]
    worker = psutil.Process(cluster.pid("worker-0-0"))
    for round_ in range(3):
        keep = [f(jax.device_put(np.full((256, 1024), i, np.float32), sh)) for i in range(40)]
        jax.block_until_ready(keep)
        del keep
        gc.collect()
        f(jax.device_put(np.zeros((256, 1024), np.float32), sh)).block_until_ready()
        if round_ == 0:
            time.sleep(1.5)
            idle = worker.memory_info().rss
    gc.collect()
    now = settled(cluster, before, ("arrays", "buffers", "host_buffers", "requests"))
    for k in ("arrays", "buffers", "host_buffers", "requests"):
        assert now[k] <= before[k], (k, before, now)
    deadline = time.time() + 10      # freed memory goes back to the system once the worker is idle
    while worker.memory_info().rss > idle * 1.05 and time.time() < deadline:
        time.sleep(0.2)
    assert worker.memory_info().rss <= idle * 1.05, (idle, worker.memory_info().rss)


def test_user_contexts_are_released():
    """60,000 calls: the client's memory stays flat, so the server reports each traceback back."""
    f = jax.jit(lambda v: v + 1)
    x = f(np.float32(0))
    me = psutil.Process()

    def run(n, x):
        for i in range(n):
            x = f(x)
            if i % 1000 == 0:
                x.block_until_ready()
        return x.block_until_ready()

    x = run(20_000, x)
    rss = me.memory_info().rss
    x = run(40_000, x)
    assert float(x) == 60_001
    assert me.memory_info().rss - rss < 12e6, (me.memory_info().rss - rss) / 1e6


def test_threads_do_not_grow_with_pending_requests(cluster):
    import landbridge

    proxy = psutil.Process(cluster.pid("proxy"))
    hold = jax.jit(lambda v: landbridge.virtual_compute(v, duration_us=1_500_000))
    f = jax.jit(lambda v: v + 1)
    x = jax.device_put(np.zeros(4, np.float32), jax.devices()[0])
    f(hold(x)).block_until_ready()
    idle = proxy.num_threads()
    y = hold(x)
    for _ in range(10_000):
        y = f(y)
    many = proxy.num_threads()
    np.testing.assert_array_equal(np.asarray(y), np.full(4, 10_000))
    assert many <= idle + 1, (idle, many)
