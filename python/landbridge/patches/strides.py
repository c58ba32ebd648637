"""device_put of numpy arrays with negative or zero strides (a[::-1], np.broadcast_to).

The stock proxy client refuses them with UNIMPLEMENTED; plain JAX takes them. A copy has ordinary strides.
"""
import inspect

import numpy as np

NAME = "strides"

_PARAMETERS = ["aval", "sharding", "xs", "devices", "committed"]


def check():
    from jax._src.interpreters import pxla
    stock = getattr(pxla, "batched_device_put", None)
    if stock is None:
        return "jax._src.interpreters.pxla has no batched_device_put"
    found = list(inspect.signature(stock).parameters)
    if found[:len(_PARAMETERS)] != _PARAMETERS:
        return f"batched_device_put takes {found}"
    return None


def with_plain_strides(x):
    """`x`, or a contiguous copy of it when it is a numpy array with a stride that is not positive.

    JAX hands on numpy arrays as TypedNdArray, which keeps their dtype whatever jax_enable_x64 says: so does the copy. It is a
    kind of np.ndarray since 0.9, and holds one before.
    """
    values = getattr(x, "val", x)
    if not isinstance(values, np.ndarray) or all(s > 0 or n <= 1 for s, n in zip(values.strides, values.shape)):
        return x
    copy = np.array(values, order="C", subok=True)
    return copy if values is x else type(x)(copy, x.weak_type)


def install():
    from jax._src.interpreters import pxla
    stock = pxla.batched_device_put

    def batched_device_put(aval, sharding, xs, devices, *args, **kwargs):
        if devices and devices[0].client.runtime_type.startswith("proxy"):
            xs = [with_plain_strides(x) for x in xs]
        return stock(aval, sharding, xs, devices, *args, **kwargs)

    batched_device_put.__wrapped__ = stock
    pxla.batched_device_put = batched_device_put
