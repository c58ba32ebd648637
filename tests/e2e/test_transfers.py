"""device_put within and between slices, memory kinds, resharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from test_spmd import data, mesh_of


def proxy_bytes(cluster):
    """Tensor bytes that went through the proxy since it started."""
    return cluster.status()["proxy"]["tensor_bytes"]


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_slice_to_slice(cluster, spec):
    x = data(256, 1024)
    a = jax.jit(lambda v: v + 0, out_shardings=NamedSharding(mesh_of(0), spec))(
        jax.device_put(x, NamedSharding(mesh_of(0), spec)))
    a.block_until_ready()
    before = proxy_bytes(cluster)
    b = jax.device_put(a, NamedSharding(mesh_of(1), spec))
    b.block_until_ready()
    assert proxy_bytes(cluster) == before
    assert {d.slice_index for d in b.devices()} == {1}
    c = jax.jit(lambda v: v * 2)(b)
    np.testing.assert_array_equal(np.asarray(c), x * 2)
    np.testing.assert_array_equal(np.asarray(a), x)


def test_chain_over_slices():
    a, b = (NamedSharding(mesh_of(s), P("x")) for s in (0, 1))
    f = jax.jit(lambda v: v + 1)
    x = jax.device_put(np.zeros((8, 8), np.float32), a)
    for i in range(20):
        x = jax.device_put(f(x), b if i % 2 == 0 else a)
    np.testing.assert_array_equal(np.asarray(x), np.full((8, 8), 20, np.float32))


def test_single_device_moves():
    x = jax.device_put(data(1000), jax.devices()[0])
    for d in (1, 5, 2, 7, 0):
        x = jax.device_put(x, jax.devices()[d])
        assert x.devices() == {jax.devices()[d]}
    np.testing.assert_array_equal(np.asarray(x), data(1000))


def test_source_deleted_at_once():
    a, b = (NamedSharding(mesh_of(s), P("x")) for s in (0, 1))
    for _ in range(10):
        x = jax.device_put(data(512, 512), a)
        y = jax.device_put(x, b)
        x.delete()
        np.testing.assert_array_equal(np.asarray(y), data(512, 512))


def test_other_partitionings_have_right_values():
    """Those may go through the client with stock JAX; the values must be right all the same."""
    x = data(16, 16)
    specs = [P("x"), P(None, "x"), P()]
    for s in specs:
        for t in specs:
            a = jax.device_put(x, NamedSharding(mesh_of(0), s))
            for m in (0, 1):
                np.testing.assert_array_equal(np.asarray(jax.device_put(a, NamedSharding(mesh_of(m), t))), x)
    one = jax.device_put(x, jax.devices()[0])
    np.testing.assert_array_equal(np.asarray(jax.device_put(one, NamedSharding(mesh_of(1), P("x")))), x)


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_memory_kinds(kind):
    for s in (0, 1):
        sh = NamedSharding(mesh_of(s), P("x"))
        x = jax.device_put(data(8, 8), sh)
        y = jax.device_put(x, sh.with_memory_kind(kind))
        assert y.sharding.memory_kind == kind
        np.testing.assert_array_equal(np.asarray(y), data(8, 8))
        z = jax.device_put(y, sh)
        assert z.sharding.memory_kind == "device"
        np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(z)), data(8, 8) + 1)


def test_pathwaysutils_reshard(cluster):
    from pathwaysutils import reshard

    x = data(16, 32)
    before = proxy_bytes(cluster)
    arrays = {}
    src = jax.jit(lambda v: v + 0)(jax.device_put(x, NamedSharding(mesh_of(0), P("x"))))
    src.block_until_ready()
    before = proxy_bytes(cluster)
    targets = {
        "replicated": NamedSharding(mesh_of(1), P()),
        "columns": NamedSharding(mesh_of(1), P(None, "x")),
        "2d": NamedSharding(mesh_of(1, (2, 2), ("a", "b")), P("b", "a")),
        "same": NamedSharding(mesh_of(0, (2, 2), ("a", "b")), P("a")),
        "one": NamedSharding(Mesh(np.array([jax.devices()[6]]), ("q",)), P()),
    }
    arrays = reshard.reshard({k: src for k in targets}, targets)
    jax.block_until_ready(arrays)
    assert proxy_bytes(cluster) == before
    for k, v in arrays.items():
        assert v.sharding.is_equivalent_to(targets[k], 2), k
        np.testing.assert_array_equal(np.asarray(v), x, err_msg=k)
    donated = reshard.reshard(src, targets["columns"], donate=True)
    np.testing.assert_array_equal(np.asarray(donated), x)


