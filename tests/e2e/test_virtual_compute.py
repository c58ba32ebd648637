"""Device time that is a timer: two slices overlap, one device does not."""

import time

import jax
import numpy as np
import landbridge
from servers import until
from test_graph import graph_json


def test_overlap_of_two_slices(cluster):
    """Two launches run at the same moment on two slices; on one device the second waits for the first."""
    f = jax.jit(lambda v: landbridge.virtual_compute(v + 1, duration_us=3_000_000))
    xs = [jax.device_put(np.zeros(8, np.float32), d) for d in (jax.devices()[0], jax.devices()[4])]
    both = [f.lower(x).compile() for x in xs]
    started = time.monotonic()
    ys = [g(x) for g, x in zip(both, xs)]
    third = both[0](ys[0])
    assert not any(y.is_ready() for y in (*ys, third))      # dispatched, and not waited for

    def states():
        return sorted((n["devices"], n["state"]) for n in graph_json(cluster)["nodes"])
    until(lambda: states() == [([0], "running"), ([0], "waiting"), ([4], "running")], lambda: f"two at once: {states()}")
    third.block_until_ready()
    assert time.monotonic() - started >= 6      # never sooner
    for y, want in zip((*ys, third), (1, 1, 2)):
        np.testing.assert_array_equal(np.asarray(y), np.full(8, want))


def test_in_shard_map():
    from jax.sharding import PartitionSpec as P
    from test_spmd import mesh_of

    g = jax.jit(jax.shard_map(lambda v: landbridge.virtual_compute(v * 2, duration_us=50_000), mesh=mesh_of(0),
                              in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(g(x)), x * 2)
