"""SPMD programs whose devices lie on several workers and slices."""

import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from admin import Links
from conftest import LONG_LEASE, fresh_cluster
from program_sets import cases_of, compare, plain_results, results
from servers import until
from test_faults import finish, go, wait_ready
from test_scheduler import wait_until_idle, worker_grant

SPMD_PROGRAMS = pathlib.Path(__file__).with_name("spmd_programs.py")


def mesh_of(shape=(8,), names=("x",)):
    """All devices of both slices."""
    return Mesh(np.array(jax.devices()).reshape(shape), names)


def data(*shape, dtype=np.float32):
    return (np.random.RandomState(0).randn(*shape) * 8).astype(dtype)


def test_every_collective_over_two_slices(cluster):
    m = mesh_of()
    x = data(16, 8)

    def run(f, out=P("x")):
        return np.asarray(jax.jit(jax.shard_map(f, mesh=m, in_specs=P("x"), out_specs=out, check_vma=False))(x))

    blocks = x.reshape(8, 2, 8)
    np.testing.assert_allclose(run(lambda v: jax.lax.psum(v, "x"), P()), blocks.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(run(lambda v: jax.lax.pmax(v, "x"), P()), blocks.max(0))
    np.testing.assert_array_equal(run(lambda v: jax.lax.all_gather(v, "x", tiled=True), P()), x)
    np.testing.assert_array_equal(
        run(lambda v: jax.lax.ppermute(v, "x", [(i, (i + 1) % 8) for i in range(8)])), np.roll(blocks, 1, 0).reshape(16, 8))
    np.testing.assert_array_equal(                                    # who is no target gets zeros
        run(lambda v: jax.lax.ppermute(v, "x", [(0, 7)])), np.concatenate([np.zeros((14, 8)), x[:2]]))
    np.testing.assert_allclose(
        run(lambda v: jax.lax.psum_scatter(v.T, "x", tiled=True).T, P(None, "x")), blocks.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(
        run(lambda v: jax.lax.all_to_all(v, "x", split_axis=1, concat_axis=0, tiled=True), P(None, "x")), x)
    np.testing.assert_array_equal(
        run(lambda v: v * 0 + jax.lax.axis_index("x")), np.repeat(np.arange(8.0), 2)[:, None] * np.ones((16, 8)))


def test_sums_over_groups_of_unequal_size(cluster):
    x = data(8, 4)
    groups = [[0, 5], [1, 2, 3, 4, 6, 7]]
    y = jax.pmap(lambda v: jax.lax.psum(v, "i", axis_index_groups=groups), "i")(x)
    want = np.empty_like(x)
    for group in groups:
        want[group] = x[group].sum(0)
    np.testing.assert_allclose(np.asarray(y), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, ml_dtypes.bfloat16, np.complex64, np.float64, np.bool_], ids=str)
def test_sums_of_many_types(cluster, dtype):
    m = mesh_of()
    x = np.arange(64).reshape(8, 8) % 3
    with jax.enable_x64(dtype == np.float64):
        y = jax.device_put(x.astype(dtype), NamedSharding(m, P("x")))
        f = jax.shard_map(lambda v: jax.lax.pmax(v, "x") if dtype == np.bool_ else jax.lax.psum(v, "x"),
                          mesh=m, in_specs=P("x"), out_specs=P())
        z = jax.jit(f)(y)
    assert z.dtype == dtype
    want = x.any(0)[None] if dtype == np.bool_ else x.sum(0)[None]
    np.testing.assert_array_equal(np.asarray(z).astype(want.dtype if dtype != np.complex64 else dtype), want)


def test_partitioned_programs(cluster):
    """What the compiler partitions by itself: matrix products on meshes of two axes, gradients, loops, donation."""
    m = mesh_of((2, 4), ("a", "b"))
    x, w = data(16, 32), data(32, 8)

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    step = jax.jit(lambda w, x: w - 0.01 * jax.grad(loss)(w, x), donate_argnums=0)
    local = w
    there = jax.device_put(w, NamedSharding(m, P("b", None)))
    xs = jax.device_put(x, NamedSharding(m, P("a", "b")))
    for _ in range(3):
        there = step(there, xs)
        h = np.tanh(x @ local)
        local = local - 0.01 * (x.T @ (2 * h * (1 - h * h)))
    np.testing.assert_allclose(np.asarray(there), local, rtol=2e-4, atol=2e-4)

    f = jax.jit(lambda v: jax.lax.fori_loop(0, 5, lambda i, c: c / jnp.linalg.norm(c) + i, v))
    want = x
    for i in range(5):
        want = want / np.linalg.norm(want) + i
    np.testing.assert_allclose(np.asarray(f(xs)), want, rtol=1e-5)


def test_arguments_and_results_in_layouts_of_their_own(cluster):
    m = mesh_of()
    rows = NamedSharding(m, P("x"))
    columns = Format(Layout(major_to_minor=(0, 2, 1)), rows)
    x = data(8, 4, 3)
    placed = jax.device_put(x, columns)
    assert placed.format.layout.major_to_minor == (0, 2, 1)
    np.testing.assert_array_equal(np.asarray(placed), x)
    want = x + x.sum(0, dtype=np.float32)
    for formats in ({"in_shardings": columns}, {"in_shardings": columns, "out_shardings": columns}):
        y = jax.jit(lambda v: v + v.sum(0), **formats)(placed)
        np.testing.assert_allclose(np.asarray(y), want, rtol=1e-5, atol=1e-4)
        for shard in y.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), want[shard.index], rtol=1e-5, atol=1e-4)
    z = jax.jit(lambda v: (v * 2, v.T), out_shardings=(columns, NamedSharding(m, P(None, None, "x"))))(y)
    np.testing.assert_array_equal(np.asarray(z[0]), np.asarray(y) * 2)
    np.testing.assert_array_equal(np.asarray(z[1]), np.asarray(y).T)


def test_many_independent_collectives_and_meshes_at_once(cluster):
    """Nothing orders them but their data: whatever order they come in on each device, they end."""
    m, n = mesh_of((2, 4), ("a", "b")), Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("a", "b"))

    def twelve(v):
        parts = [jax.lax.psum(v * (i + 1), ("a", "b", ("a", "b"))[i % 3]) for i in range(12)]
        return sum(jnp.sum(p) for p in parts) + v * 0

    def on(mesh):
        return (jax.jit(jax.shard_map(twelve, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")))),
                jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P(("a", "b")))))

    (f, x), (g, y) = on(m), on(n)
    for _ in range(20):
        a, b = f(x), g(y)
    weight = {0: (2, 4), 1: (4, 2), 2: (8, 8)}
    for got, which in ((a, 0), (b, 1)):
        want = sum((i + 1) * weight[i % 3][which] * 16 for i in range(12))
        np.testing.assert_array_equal(np.asarray(got), np.full((8, 16), want))


def test_local_work_goes_past_and_results_move_on(cluster):
    m = mesh_of()
    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(m, P("x")))
    f = jax.jit(lambda v: v / v.sum() * 32)
    first = jax.devices()[0]
    small = jax.device_put(np.zeros(4, np.float32), first)
    for _ in range(50):
        x = f(x)
        small = small + 1
    np.testing.assert_allclose(np.asarray(x), np.ones((8, 4)), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(small), np.full(4, 50))
    back = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()[4:]), ("y",)), P("y")))
    np.testing.assert_allclose(np.asarray(back + 1), np.full((8, 4), 2), rtol=1e-5)


BITS = """
import hashlib
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("a", "b"))
x = np.random.RandomState(1).randn(64, 512).astype(np.float32) * 1000
xs = jax.device_put(x, NamedSharding(mesh, P(("a", "b"))))
f = jax.jit(jax.shard_map(lambda v: (jax.lax.psum(v, ("a", "b")), jax.lax.psum(v.sum(), "b")[None],
                                     jax.lax.psum(jnp.tile(v, (40, 1)), "a")),
                          mesh=mesh, in_specs=P(("a", "b")), out_specs=(P(), P("a"), P("b"))))
print(hashlib.sha256(b"".join(np.asarray(y).tobytes() for y in f(xs))).hexdigest())
"""


def test_the_same_bits_on_any_number_of_workers():
    """Two workers of four devices and four of two. (On one worker the plugin's own order of additions holds.)"""
    digests = []
    for workers, devices in ((2, 4), (4, 2)):
        with fresh_cluster(slices=1, workers=workers, devices=devices) as c:
            digests.append(c.script(BITS).stdout)
    assert digests[0] == digests[1] and len(digests[0]) == 65


OVER_SLICES = """
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = np.array(jax.devices())
assert len({d.slice_index for d in devices}) == 2 and len(devices) == 8
r = np.random.RandomState(0)
x = r.randint(-1000, 1000, (8, 96_000), dtype=np.int32)
y = r.randn(8, 96_000).astype(np.float32)
for order in (range(8), (0, 4, 1, 5, 2, 6, 3, 7)):
    mesh = Mesh(devices[list(order)], ("x",))
    def run(f, v, out=P("x")):
        g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=False))
        first = np.asarray(g(v))
        for _ in range(3):
            assert first.tobytes() == np.asarray(g(v)).tobytes()
        return first
    total = lambda v: jax.lax.psum(v, "x")
    scatter = lambda v: jax.lax.psum_scatter(v[0], "x", tiled=True)[None]
    np.testing.assert_array_equal(run(total, x, P())[0], x.sum(0))
    # Summed up in each slice before anything crosses: another order than that of the ranks, if these alternate.
    halves = [y[[i for i, d in enumerate(order) if devices[d].slice_index == s]] for s in (0, 1)]
    sums = [(v[0] + v[1]) + (v[2] + v[3]) for v in halves]
    np.testing.assert_array_equal(run(total, y, P())[0], sums[0] + sums[1])
    np.testing.assert_array_equal(run(scatter, x).reshape(-1), x.sum(0))
    np.testing.assert_array_equal(run(lambda v: jax.lax.all_gather(v, "x", tiled=True), x, P()), x)
    np.testing.assert_array_equal(run(lambda v: jax.lax.pmax(v, "x"), y, P())[0], y.max(0))
print("equal")
"""


def test_large_collectives_over_slices_of_several_workers():
    with fresh_cluster(slices=2, workers=2, devices=2) as c:
        assert c.script(OVER_SLICES).stdout.strip() == "equal"


MAIL_BYTES = 16 << 10  # what workers may tell each other about the order of some launches

SUMS = """
import sys
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
n, k, times = 3 << 18, 6, 4
f = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
x = jax.device_put(np.arange(k * n, dtype=np.int32).reshape(k, n), NamedSharding(mesh, P("x")))
f = f.lower(x).compile()
print("ready", flush=True)
sys.stdin.readline()
sums = jax.block_until_ready([f(x) for _ in range(times)])
print("done", flush=True)
sys.stdin.readline()
for y in sums:
    np.testing.assert_array_equal(np.asarray(y)[0], np.arange(n, dtype=np.int32) * k + n * (k * (k - 1) // 2))
print("right", flush=True)
"""


def test_an_all_reduce_sends_between_slices_what_one_worker_a_slice_would():
    """2 n (k - 1) / k bytes from each of k slices, whatever the number of their workers; the cluster's status says so."""
    with fresh_cluster(slices=3, workers=2, devices=1) as c:
        p = c.start(SUMS)
        wait_ready(p)
        links = Links(c)
        before = links.bytes()
        go(p)
        assert p.stdout.readline() == "done\n"
        n, k, times = 4 * (3 << 18), 3, 4
        values = times * 2 * n * (k - 1) // k
        for sent in links.between_slices(before).values():
            assert values <= sent < values + MAIL_BYTES, (sent, values)
        # In each slice every worker takes part: its own share of the sums, and the other's.
        inside = sum(count for (source, target), count in links.since(before).items()
                     if source >= 0 and links.slices[source] == links.slices[target])
        assert 0 < inside <= k * times * 2 * 2 * n

        def told():
            """The same, as `landbridge status --json` has it of heartbeats."""
            workers = [(s["index"], w) for s in c.status()["proxy"]["slices"] for w in s["workers"]]
            slice_of = {w["life"]: s for s, w in workers}
            total = dict.fromkeys(range(k), 0)
            for s, w in workers:
                for link in w.get("links", []):
                    if slice_of.get(link["from"], s) != s:
                        total[slice_of[link["from"]]] += link["bytes_received"]
            return total
        until(lambda: told() == links.between_slices({}), lambda: f"{told()} and {links.between_slices({})}")
        go(p)
        assert "right" in finish(p)


def test_programs_of_every_kind_have_the_values_of_plain_jax(tmp_path):
    """On four workers; the others of this file run on two slices."""
    plain = plain_results(SPMD_PROGRAMS, tmp_path, 8, "partitioned", "models", "by_hand")
    cases = cases_of(plain, "partitioned", "models", "by_hand")
    assert len(cases) > 60
    with fresh_cluster(slices=1, workers=4, devices=2) as c:
        found = results(SPMD_PROGRAMS, c.env(), tmp_path, "partitioned", "models", "by_hand")
    for case in cases:
        compare(plain, found, case)


def test_losing_a_worker_fails_the_launch_everywhere_and_the_next_one_works():
    with fresh_cluster(slices=1, workers=2, devices=2) as c:
        second = c.status()["slices"][0]["workers"].split(", ")[1]
        p = c.start("""
import sys
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
mesh = Mesh(np.array(devices), ("x",))
spin = jax.jit(jax.shard_map(lambda v: jax.lax.fori_loop(0, 10**7, lambda i, c: jax.lax.psum(c, "x") / 4, v),
                             mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
f = jax.jit(jax.shard_map(lambda v: v + jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
def put(): return jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
here = jax.device_put(np.ones(2, np.float32), devices[0])
np.testing.assert_array_equal(np.asarray(f(put())), np.arange(8) + np.tile([12.0, 16.0], 4))
y = spin(put())
print("runs", flush=True)
sys.stdin.readline()
try:
    y.block_until_ready()
    raise SystemExit("no error")
except Exception as e:
    assert "DATA_LOSS" in str(e) and "lost worker" in str(e), str(e)
for shard in y.addressable_shards:                        # everywhere, also where the worker lives
    try:
        np.asarray(shard.data)
        raise SystemExit("no error")
    except Exception as e:
        assert "DATA_LOSS" in str(e), str(e)
np.testing.assert_array_equal(np.asarray(here + 1), [2, 2])
np.testing.assert_array_equal(np.asarray(f(put())), np.arange(8) + np.tile([12.0, 16.0], 4))   # with its next life
print("done", flush=True)
""")
        assert p.stdout.readline() == "runs\n"
        first = next(name for name in c.status()["slices"][0]["workers"].split(", ") if name != second)
        survivor = c.pid(first)
        os.kill(c.pid(second), signal.SIGKILL)
        p.stdin.write("\n")
        out, err = p.communicate(timeout=120)
        assert out == "done\n", err
        assert c.refresh()[first]["pid"] == survivor


def test_a_client_that_is_killed_leaves_no_launch_behind():
    with fresh_cluster(slices=2, workers=1, devices=2) as c:
        p = c.start("""
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
spin = jax.jit(jax.shard_map(lambda v: jax.lax.fori_loop(0, 10**4, lambda i, c: jax.lax.psum(c, "x") / 4, v),
                             mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
for _ in range(20):
    x = spin(x)
print("runs", flush=True)
x.block_until_ready()
""")
        assert p.stdout.readline() == "runs\n"
        p.kill()
        p.communicate()
        c.script("""
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
x = jax.device_put(np.arange(4, dtype=np.float32), NamedSharding(mesh, P("x")))
assert float(jax.jit(lambda v: v.sum())(x)) == 6
""")


def test_a_late_launch_does_not_hold_up_a_ready_one_that_spans_the_same_workers():
    """B and C run over both workers of a slice, on the same devices; B's input is three seconds away on another slice."""
    with fresh_cluster(slices=2, workers=2, devices=2) as c:
        done = c.script("""
import time
import numpy as np, jax, jax.numpy as jnp, landbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
here, there = Mesh(np.array(devices[:4]), ("x",)), Mesh(np.array(devices[4:]), ("x",))
rows, remote_rows = NamedSharding(here, P("x")), NamedSharding(there, P("x"))
def over(mesh, f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
slow = over(there, lambda v: landbridge.virtual_compute(v + 1, duration_us=3_000_000))
f = over(here, lambda v: v + jax.lax.psum(v, "x"))
x, y = jax.device_put(np.ones(4, np.float32), remote_rows), jax.device_put(np.arange(4, dtype=np.float32), rows)
jax.block_until_ready((jax.device_put(slow(x), rows), f(y)))
started = time.monotonic()
b = f(jax.device_put(slow(x), rows))
c = f(y)                                      # submitted later, on the same devices
for _ in range(3):                            # and what rests on it
    c = f(c)
c.block_until_ready()
took = time.monotonic() - started
assert not b.is_ready()
want = np.arange(4, dtype=np.float32)
for _ in range(4):
    want = want + want.sum()
np.testing.assert_array_equal(np.asarray(c), want)
np.testing.assert_array_equal(np.asarray(b), np.full(4, 10))
print("C took %.4f s, B %.4f s" % (took, time.monotonic() - started))
""")
        assert "C took" in done.stdout
        print(done.stdout)


def test_meshes_that_overlap_from_several_threads_in_opposite_orders():
    """One mesh on each slice and one over both, each used by every thread, in its own order: right values, and an end."""
    with fresh_cluster(slices=2, workers=2, devices=2) as c:
        done = c.script("""
import sys, threading
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
def group(devices):
    mesh, n = Mesh(np.array(devices), ("x",)), len(devices)
    f = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x") / n + 1, mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                              check_vma=False))
    return f, NamedSharding(mesh, P("x"))
groups = [group(devices[:4]), group(devices[4:]), group(devices), group(devices[2:6])]
orders = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]
rounds, failures = 150, []
def run(order):
    try:
        values = [jax.device_put(np.zeros(8, np.float32), sharding) for _, sharding in groups]
        for i in range(rounds):
            for g in order:
                values[g] = groups[g][0](values[g])
            if i % 25 == 0:
                jax.block_until_ready(values)
        for v in values:
            np.testing.assert_array_equal(np.asarray(v), np.full(8, rounds, np.float32))
    except BaseException as e:
        failures.append(e)
        raise
threads = [threading.Thread(target=run, args=(order,)) for order in orders]
for t in threads: t.start()
for t in threads: t.join()
assert not failures
print("right")
""")
        assert "right" in done.stdout


def test_launches_over_workers_that_are_dispatched_end_without_client_and_proxy():
    """The workers agree on their order among themselves: B waits for another slice, C and a chain behind it do not."""
    with fresh_cluster(*LONG_LEASE, slices=2, workers=2, devices=1) as c:
        p = c.start("""
import sys
import numpy as np, jax, landbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
def over(devices, f):
    mesh = Mesh(np.array(devices), ("x",))
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    return g, NamedSharding(mesh, P("x"))
f, rows = over(devices[:2], lambda v: v + jax.lax.psum(v, "x"))
slow, there = over(devices[2:], lambda v: landbridge.virtual_compute(v + 1, duration_us=2_000_000))
everywhere, all_rows = over(devices, lambda v: v * 0 + jax.lax.psum(v, "x"))
x, y = jax.device_put(np.zeros(4, np.float32), there), jax.device_put(np.ones(4, np.float32), rows)
z = jax.device_put(np.ones(4, np.float32), all_rows)
jax.block_until_ready((f(jax.device_put(slow(x), rows)), f(y), everywhere(z)))
b = f(f(jax.device_put(slow(x), rows)))
for _ in range(10):
    y = f(y)
z = everywhere(jax.device_put(b, all_rows))
print("ready", flush=True)
sys.stdin.readline()
np.testing.assert_array_equal(np.asarray(y), np.full(4, 3.0 ** 10, np.float32))
np.testing.assert_array_equal(np.asarray(b), np.full(4, 9.0))
np.testing.assert_array_equal(np.asarray(z), np.full(4, 36.0))
print("right", flush=True)
""")
        wait_ready(p)
        until(lambda: any(worker_grant(c, f"worker-0-{w}")["queues"]["launches_total"] > 0 for w in range(2)),
              "B, before its input is there")
        stopped = [p.pid, c.pid("proxy")]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_until_idle(c)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        go(p)
        assert "right" in finish(p)
