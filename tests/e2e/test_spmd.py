"""Sharded programs inside a slice, and what happens across slices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

SLICE = [0, 1]


def mesh_of(slice_index, shape=(4,), names=("x",)):
    devices = [d for d in jax.devices() if d.slice_index == slice_index]
    return Mesh(np.array(devices).reshape(shape), names)


def data(*shape):
    return np.random.RandomState(0).randn(*shape).astype(np.float32)


@pytest.mark.parametrize("s", SLICE)
@pytest.mark.parametrize("shape,names,spec", [
    ((4,), ("x",), P("x")), ((4,), ("x",), P(None, "x")), ((4,), ("x",), P()),
    ((2, 2), ("x", "y"), P("x", "y")), ((2, 2), ("x", "y"), P("y", "x")), ((2, 2), ("x", "y"), P("x")),
    ((2, 2), ("x", "y"), P(("x", "y"))), ((2, 2), ("x", "y"), P(None, ("y", "x"))),
], ids=str)
def test_named_sharding(s, shape, names, spec):
    sharding = NamedSharding(mesh_of(s, shape, names), spec)
    x = data(8, 8)
    y = jax.device_put(x, sharding)
    np.testing.assert_array_equal(np.asarray(y), x)
    z = jax.jit(lambda v: v @ v.T + 1, out_shardings=sharding)(y)
    np.testing.assert_allclose(np.asarray(z), x @ x.T + 1, rtol=1e-4, atol=1e-4)
    assert z.sharding.is_equivalent_to(sharding, 2)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), x[shard.index])


@pytest.mark.parametrize("s", SLICE)
def test_collectives(s):
    m = mesh_of(s)
    x = data(8, 4)

    def run(f, out=P("x")):
        return np.asarray(jax.jit(jax.shard_map(f, mesh=m, in_specs=P("x"), out_specs=out, check_vma=False))(x))

    blocks = x.reshape(4, 2, 4)
    np.testing.assert_allclose(run(lambda v: jax.lax.psum(v, "x"), P()), blocks.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run(lambda v: jax.lax.all_gather(v, "x", tiled=True), P()), x)
    np.testing.assert_array_equal(
        run(lambda v: jax.lax.ppermute(v, "x", [(i, (i + 1) % 4) for i in range(4)])), np.roll(blocks, 1, 0).reshape(8, 4))
    np.testing.assert_allclose(
        run(lambda v: jax.lax.psum_scatter(v.reshape(2, 4).T, "x", tiled=True).T, P(None, "x")),
        blocks.sum(0), rtol=1e-5, atol=1e-6)
    z = run(lambda v: jax.lax.all_to_all(v, "x", split_axis=1, concat_axis=0, tiled=True), P(None, "x"))
    np.testing.assert_array_equal(z, x)


def test_both_slices_at_once():
    outs = []
    for s in SLICE:
        sh = NamedSharding(mesh_of(s), P("x"))
        f = jax.jit(lambda v: jnp.cumsum(v, 0), in_shardings=sh, out_shardings=sh)
        outs.append(f(data(8, 8)))
    for o in outs:
        np.testing.assert_allclose(np.asarray(o), np.cumsum(data(8, 8), 0), rtol=1e-4, atol=1e-5)


def test_long_collective_loop():
    m = mesh_of(0)
    sh = NamedSharding(m, P("x"))
    f = jax.jit(jax.shard_map(lambda v: v + jax.lax.psum(v, "x") * 0.0 + 1, mesh=m, in_specs=P("x"), out_specs=P("x")),
                donate_argnums=0)
    x = jax.device_put(np.zeros((4, 16), np.float32), sh)
    for _ in range(500):
        x = f(x)
    np.testing.assert_array_equal(np.asarray(x), np.full((4, 16), 500, np.float32))


def test_pmap():
    n = 4
    f = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i", devices=jax.devices()[:n])
    np.testing.assert_allclose(np.asarray(f(np.arange(n, dtype=np.float32))), np.full(n, 6.0))


def test_single_devices():
    for d in jax.devices():
        x = jax.device_put(np.float32(d.id), d)
        y = jax.jit(lambda v: v * 2)(x)
        assert float(y) == 2 * d.id and y.devices() == {d}


def test_make_array_from_callback_and_parts():
    sh = NamedSharding(mesh_of(1), P("x"))
    x = data(8, 4)
    y = jax.make_array_from_callback((8, 4), sh, lambda i: x[i])
    np.testing.assert_array_equal(np.asarray(y), x)
    parts = [jax.device_put(x[2 * i:2 * i + 2], d) for i, d in enumerate(sh.mesh.devices.flat)]
    z = jax.make_array_from_single_device_arrays((8, 4), sh, parts)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(z)), x + 1)
    assert isinstance(parts[0].sharding, SingleDeviceSharding)


NEWER = """
    import jax, jax.numpy as jnp, numpy as np
    from jax._src.lax import parallel
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()[:4]), "d")
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), NamedSharding(mesh, P("d")))
    sums = jax.jit(jax.shard_map(lambda v: parallel.psum_scatter_start(v, "d", scatter_dimension=0, tiled=True).done(),
                                 mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    try:
        y = sums(x)
        np.testing.assert_array_equal(np.asarray(y), np.arange(64, dtype=np.float32).reshape(4, 4, 4).sum(0))
        assert y.sharding.device_set == set(jax.devices()[:4])
        assert "reduce-scatter" in sums.lower(x).compile().as_text()
        print("right")
    except jax.errors.JaxRuntimeError as error:
        print(str(error)[:100])
    try:
        jax.jit(lambda v: v, out_shardings=NamedSharding(mesh, P("d"))).lower(x).compile()
        print("others too")
    except jax.errors.JaxRuntimeError as error:
        print(error)
"""


def test_operations_newer_than_the_clients_message(cluster):
    """Asynchronous collectives: the client writes programs in an older StableHLO, which does not have them."""
    assert cluster.script(NEWER).stdout == "right\nothers too\n"
    without = cluster.script(NEWER, LANDBRIDGE_PATCHES="-newer_programs").stdout
    assert "Failed to serialize StableHLO" in without and "others too" in without
