"""Device work that is a timer: to see overlap, bubbles and scale on a machine that could not compute that much."""
import jax
import jax.numpy as jnp
import numpy as np

TARGET = "landbridge_virtual_compute"

# XLA's CPU backend runs a program below 1,000 floating point operations inside the call that launches it, in the
# launching thread. This many additions on data make sure that a program with virtual work is not among them.
_PAD = 2048


def virtual_compute(x, *, duration_us):
    """`x` unchanged, after the device that holds it was busy for `duration_us` microseconds.

    For use under jit; on sharded values call it inside jax.shard_map, so that each device waits for its own shard
    (the partitioner would otherwise bring everything to each device first). The device's time is really taken: other
    programs of that device wait. Like any other operation it is left out where nothing uses its result, and two equal
    ones on the same value are one. Derivatives pass through without taking time; under vmap the batch takes the time once.
    Only devices of a Landbridge cluster know the operation.
    """
    duration_us = int(duration_us)
    if duration_us < 0:
        raise ValueError(f"duration_us is {duration_us}, but must not be negative")
    return _timer(duration_us, jnp.asarray(x))


def _timer(duration_us, x):
    @jax.custom_jvp
    def timer(x):
        first = jnp.real(x.ravel()[:1]).astype(jnp.float32)
        # Depends on the data, so that XLA cannot compute it at compile time.
        pad = jnp.broadcast_to(first, (_PAD,)) + jax.lax.iota(jnp.float32, _PAD) if x.size else jnp.zeros(_PAD)
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, pad)]
        # In place: the time is the device's, copying would be this machine's.
        call = jax.ffi.ffi_call(TARGET, shapes, vmap_method="broadcast_all", input_output_aliases={0: 0, 1: 1})
        return call(x, pad, duration_us=np.int64(duration_us))[0]

    timer.defjvp(lambda primals, tangents: (timer(*primals), tangents[0]))
    return timer(x)
