"""Device time that is a timer: two slices overlap, one device does not."""

import time

import jax
import numpy as np
import landbridge


def test_overlap_of_two_slices():
    f = jax.jit(lambda v: landbridge.virtual_compute(v + 1, duration_us=300_000))
    xs = [jax.device_put(np.zeros(8, np.float32), d) for d in (jax.devices()[0], jax.devices()[4])]
    for x in xs:
        f(x).block_until_ready()
    t = time.monotonic()
    ys = [f(x) for x in xs]
    dispatched = time.monotonic() - t
    jax.block_until_ready(ys)
    both = time.monotonic() - t
    t = time.monotonic()
    f(f(xs[0])).block_until_ready()
    chained = time.monotonic() - t
    assert dispatched < 0.25
    assert 0.3 <= both < 0.55, both
    assert chained >= 0.6, chained
    for y in ys:
        np.testing.assert_array_equal(np.asarray(y), np.ones(8))


def test_in_shard_map():
    from jax.sharding import PartitionSpec as P
    from test_spmd import mesh_of

    g = jax.jit(jax.shard_map(lambda v: landbridge.virtual_compute(v * 2, duration_us=50_000), mesh=mesh_of(0),
                              in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(g(x)), x * 2)
