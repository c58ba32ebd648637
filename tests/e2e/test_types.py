"""Kinds of values: every dtype that JAX takes, keys, weak types, x64, strings, extreme shapes, constants, and size.

What needs gigabytes runs with LANDBRIDGE_LARGE_TESTS=1 only.
"""

import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import psutil
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from conftest import fresh_cluster
from servers import alone, until
from test_values import DTYPES, WIDE, sample, same

ONE_BIT = [ml_dtypes.int1, ml_dtypes.uint1]     # arrays only: StableHLO knows no programs with them
ALL = DTYPES + ONE_BIT
# XLA has them; jaxlib's own CPU and proxy clients do not.
NOT_IN_JAXLIB = {"float6_e2m3fn", "float6_e3m2fn"}
NAMES = [np.dtype(d).name for d in ALL + WIDE]


def values(dtype, shape):
    if dtype in ONE_BIT:
        return (np.arange(np.prod(shape)).reshape(shape) % 2 * (-1 if dtype is ml_dtypes.int1 else 1)).astype(dtype)
    return sample(dtype, shape)


def mesh(first, count=4):
    return Mesh(np.array(jax.devices()[first:first + count]), ("d",))


def test_the_list_is_complete():
    from jax._src import dtypes
    assert {d.name for d in dtypes._jax_types} == set(NAMES) | NOT_IN_JAXLIB


def test_what_jax_refuses_is_refused_in_the_same_words():
    for dtype in (np.longdouble, np.object_, np.str_, "datetime64[s]", ">f4", ml_dtypes.complex32):
        with pytest.raises(TypeError, match="not a valid JAX array type"):
            jax.device_put(np.zeros((2, 3), dtype))
    for name in NOT_IN_JAXLIB:
        with pytest.raises(Exception, match=f"(?i){name}"):
            jax.device_put(np.zeros((2, 3), getattr(ml_dtypes, name)))
    same(jax.device_put(np.float32([1, 2])), np.float32([1, 2]))


@pytest.mark.parametrize("dtype", ALL + WIDE, ids=lambda d: np.dtype(d).name)
def test_every_type_everywhere(dtype):
    """Up, over the wire between slices in two partitionings, through a program, donated, and down: the same bits."""
    with jax.enable_x64(dtype in WIDE):
        x = values(dtype, (8, 12))
        y = jax.device_put(x, NamedSharding(mesh(0), P("d")))
        same(y, x)
        y = jax.device_put(y, NamedSharding(mesh(4), P("d")))
        same(y, x)
        if dtype not in ONE_BIT + [ml_dtypes.int2, ml_dtypes.uint2]:   # on these XLA aborts in partitioned programs
            y = jax.jit(lambda v: v, out_shardings=NamedSharding(mesh(4), P("d")), donate_argnums=0)(y)
        y = jax.device_put(y, NamedSharding(mesh(0), P(None, "d")))
        same(y, x)
        y = jax.device_put(y, jax.devices()[6])
        same(y, x)
        if dtype in ONE_BIT:
            return
        z = jax.jit(lambda v: v.T, donate_argnums=0)(y)
        assert z.dtype == np.dtype(dtype) and y.is_deleted()
        same(z, x.T)
        same(jax.device_put(z[:, 3], jax.devices()[1]), x.T[:, 3])
        np.testing.assert_array_equal(np.asarray(z == z), x.T == x.T)


@pytest.mark.parametrize("dtype", [ml_dtypes.int1, ml_dtypes.uint1, ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.int4,
                                   ml_dtypes.uint4, ml_dtypes.float4_e2m1fn], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 1001])
def test_less_than_a_byte_at_any_length(dtype, count):
    """Packed between workers, so lengths that fill no byte matter."""
    x = values(dtype, (count,))
    y = jax.device_put(jax.device_put(x, jax.devices()[0]), jax.devices()[7])
    same(y, x)
    if dtype not in ONE_BIT:
        z = jax.jit(lambda v: v.astype(jnp.float32) * 2)(y)
        np.testing.assert_array_equal(np.asarray(z), x.astype(np.float32) * 2)


def test_strings_in_many_places():
    x = np.array([["alpha", "", "γδ"], ["x" * 300, "\n", "\0end"]], dtype=np.dtypes.StringDType())
    devices = jax.devices()
    y = jax.device_put(x, NamedSharding(mesh(0), P()))
    np.testing.assert_array_equal(np.asarray(y), x)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), x)
    z = jax.device_put(x, devices[5])
    np.testing.assert_array_equal(np.asarray(z), x)
    z.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(z)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys(impl):
    key = jax.random.key(42, impl=impl)
    keys = jax.random.split(key, 8)
    data = np.asarray(jax.random.key_data(keys))
    assert len({row.tobytes() for row in data}) == 8
    placed = jax.device_put(keys, NamedSharding(mesh(0), P("d")))
    assert jnp.issubdtype(placed.dtype, jax.dtypes.prng_key) and placed.shape == (8,)
    same(jax.random.key_data(placed), data)
    moved = jax.device_put(placed, NamedSharding(mesh(4), P("d")))
    same(jax.random.key_data(moved), data)
    draw = jax.jit(jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 7), (3,))))
    one, two = np.asarray(draw(placed)), np.asarray(draw(moved))
    assert one.shape == (8, 3)
    if impl != "unsafe_rbg":    # its batches depend on how they are split
        np.testing.assert_array_equal(one, two)
    same(jax.random.key_data(jax.random.wrap_key_data(data, impl=impl)), data)
    last, _ = jax.jit(lambda k: jax.lax.scan(lambda c, _: (jax.random.fold_in(c, 1), None), k, length=3))(key)
    by_hand = key
    for _ in range(3):
        by_hand = jax.random.fold_in(by_hand, 1)
    same(jax.random.key_data(last), np.asarray(jax.random.key_data(by_hand)))
    single = jax.device_put(key, jax.devices()[3])
    same(jax.random.key_data(single), np.asarray(jax.random.key_data(key)))


def test_weak_types():
    double = jax.jit(lambda v: v * 2)
    y = double(3)
    assert y.weak_type and y.dtype == np.int32 and int(y) == 6
    moved = jax.device_put(y, jax.devices()[5])
    assert moved.weak_type and int(moved) == 6
    assert (double(y) + jnp.float16(1)).dtype == np.float16
    assert (double(y) + jnp.int8(1)).dtype == np.int8
    strong = double(np.int32(3))
    assert not strong.weak_type and (strong + jnp.int8(1)).dtype == np.int32
    half = jax.jit(lambda v: v / 2)(1.0)
    assert half.weak_type and (half + jnp.bfloat16(1)).dtype == jnp.bfloat16 and float(half) == 0.5


def test_wide_and_narrow_together():
    with jax.enable_x64(True):
        x = np.array([2 ** 53, -1, 2 ** 40 + 1], np.int64)
        y = jax.jit(lambda v, w: (v + 1, v.astype(jnp.float64) / 3, w * 2, jnp.sum(v)))(x, np.float32(1.5))
        assert [v.dtype for v in y] == [np.int64, np.float64, np.float32, np.int64]
        np.testing.assert_array_equal(np.asarray(y[0]), x + 1)
        np.testing.assert_allclose(np.asarray(y[1]), x.astype(np.float64) / 3, rtol=3e-16)     # as XLA divides
        assert float(y[2]) == 3 and int(y[3]) == int(x.sum())
        kept = jax.device_put(x, NamedSharding(mesh(0, 1), P()))
    assert kept.dtype == np.int64       # arrays stay what they are
    same(kept, x)
    narrow = jax.device_put(np.array([1, 2], np.int64))
    assert narrow.dtype == np.int32


def test_float0():
    zeros = np.zeros((3,), jax.dtypes.float0)
    value, tangent = jax.jvp(lambda i: i * 2, (jnp.arange(3),), (zeros,))
    assert tangent.dtype == jax.dtypes.float0 and np.asarray(value).tolist() == [0, 2, 4]
    grads = jax.jit(jax.grad(lambda i, v: jnp.sum(v * i), argnums=(0, 1), allow_int=True))(jnp.arange(3), jnp.ones(3))
    assert grads[0].dtype == jax.dtypes.float0 and np.asarray(grads[1]).tolist() == [0, 1, 2]


def test_nothing_in_them():
    for shape in ((0,), (4, 0, 3), (0, 0)):
        x = np.zeros(shape, np.float32)
        y = jax.device_put(x, NamedSharding(mesh(0), P()))
        y = jax.device_put(y, NamedSharding(mesh(4), P()))
        same(jax.jit(lambda v: v + 1)(y), x)
        assert float(jnp.sum(y)) == 0
    x = np.zeros((8, 0), np.float32)
    y = jax.device_put(jax.device_put(x, NamedSharding(mesh(0), P("d"))), NamedSharding(mesh(4), P(None, None)))
    same(y, x)
    same(jnp.concatenate([jnp.zeros((2, 0)), jnp.zeros((3, 0))]), np.zeros((5, 0), np.float32))
    same(jax.jit(lambda v: jnp.concatenate([v, v[:0]]))(jnp.arange(3)), np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("dims", [16, 32])
def test_many_dimensions(dims):
    shape = (4,) + (1,) * (dims - 4) + (2, 3, 5)
    x = np.arange(120, dtype=np.float32).reshape(shape)
    y = jax.device_put(x, NamedSharding(mesh(0), P("d")))
    y = jax.device_put(y, NamedSharding(mesh(4), P("d")))
    same(jax.jit(lambda v: v * 2)(y), x * 2)
    z = jax.device_put(y, jax.devices()[2])
    order = tuple(reversed(range(dims)))
    same(jax.jit(lambda v: jnp.transpose(v, order))(z), x.transpose(order))
    assert float(jnp.sum(z)) == x.sum()


def counts(cluster):
    return cluster.status()["proxy"]["counts"]["executables"]


def test_constants_travel_once_and_go_with_their_program(cluster):
    """20 MB inside a program: sent to the worker with it, not with its calls; gone from the worker when it is."""
    alone(cluster)
    before = counts(cluster)
    size = 20 << 20
    big = np.random.RandomState(1).randint(-2 ** 31, 2 ** 31, size // 4, dtype=np.int32)   # programs travel compressed
    f = jax.jit(lambda i: jax.lax.dynamic_slice(jnp.asarray(big), (i,), (5000,)))
    x = jax.device_put(np.int32(1000), jax.devices()[0])
    sent = cluster.status()["proxy"]["data_plane"]["bytes_sent"]
    same(f(x), big[1000:6000])
    first = cluster.status()["proxy"]["data_plane"]["bytes_sent"]
    assert size <= first - sent < 2 * size
    for _ in range(20):
        y = f(x)
    same(y, big[1000:6000])
    assert cluster.status()["proxy"]["data_plane"]["bytes_sent"] - first < 1 << 20
    assert counts(cluster) > before
    jax.clear_caches()
    del f, y
    until(lambda: counts(cluster) <= before, lambda: f"{counts(cluster)} executables, {before} before")


LARGE = pytest.mark.skipif(os.environ.get("LANDBRIDGE_LARGE_TESTS") != "1" or psutil.virtual_memory().total < 20 << 30,
                           reason="needs LANDBRIDGE_LARGE_TESTS=1 and 20 GB of memory")


@LARGE
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("gigabytes", [2.25, 4.5])
def test_large_arrays(gigabytes):
    """More elements and bytes than 31 and 32 bits count: up, through a program, to another slice, and down in parts."""
    rows = int(gigabytes * 1024)
    with fresh_cluster(slices=2, devices=1) as own:
        done = own.script(f"""
            import jax, jax.numpy as jnp, numpy as np
            rows, cols = {rows}, 1 << 20
            x = np.empty((rows, cols), np.uint8)
            x[:] = np.arange(rows, dtype=np.uint32).astype(np.uint8)[:, None]
            x[-1, -1] = 77
            a = jax.device_put(x, jax.devices()[0])
            a.block_until_ready()
            assert a.nbytes == rows * cols > {int(gigabytes)} << 30
            del x
            corner = jax.jit(lambda v: (v[-1, -3:], v[rows // 2, 5], jnp.sum(v[:, 0].astype(jnp.int32))))
            def check(v, plus):
                end, middle, column = corner(v)
                last = np.uint8((rows - 1 + plus) % 256)
                assert np.asarray(end).tolist() == [last, last, (77 + plus) % 256], end
                assert int(middle) == (rows // 2 + plus) % 256
                assert int(column) == sum((r + plus) % 256 for r in range(rows))
            check(a, 0)
            a = jax.jit(lambda v: v + 1, donate_argnums=0)(a)
            check(a, 1)
            b = jax.device_put(a, jax.devices()[1])
            b.block_until_ready()
            a.delete()
            check(b, 1)
            back = np.asarray(b)
            assert back.shape == (rows, cols) and back[-1, -1] == 78 and back[-1, 0] == np.uint8(rows % 256)
            print("whole")
        """, timeout=1100)
        assert done.stdout == "whole\n"


# Random ones: of numbers that follow a rule the compiler makes the rule. Floats: XLA writes integers longer than they are.
MAKE_CONSTANT = """
            import jax, jax.numpy as jnp, numpy as np
            big = np.random.default_rng(1).random({megabytes} << 18, np.float32)
"""


@LARGE
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("megabytes", [300, 1100])
def test_large_constants(megabytes):
    """Nobody is held up by so large a program: what was there before is there after it (no lease ran out meanwhile)."""
    with fresh_cluster(slices=1, devices=1) as own:
        done = own.script(MAKE_CONSTANT.format(megabytes=megabytes) + """
            before = jax.device_put(np.arange(3), jax.devices()[0])
            f = jax.jit(lambda i: jnp.asarray(big)[i])
            for i in (0, 12345, len(big) - 1):
                assert float(f(i)) == big[i]
            assert np.asarray(before).tolist() == [0, 1, 2]
            print("whole")
        """, timeout=1100)
        assert done.stdout == "whole\n"


@LARGE
@pytest.mark.timeout(1200)
def test_constants_that_are_too_large_are_named():
    """A program is a protobuf message, which ends at 2 GiB."""
    with fresh_cluster(slices=1, devices=1) as own:
        done = own.script(MAKE_CONSTANT.format(megabytes=2020) + """
            try:
                jax.jit(lambda i: jnp.asarray(big)[i])(3)
            except Exception as error:
                assert "pass large constants as arguments" in str(error), str(error)[:2000]
                assert int(jax.jit(lambda v: v + 1)(1)) == 2
                print("named")
        """, timeout=1100)
        assert done.stdout == "named\n"
