"""is_deleted() of arrays that share buffers with others.

Views share buffers: shards of an array, an array that was put together of others, one that device_put found where it was
wanted. Who deletes or donates one of them ends the rest. The stock client says of an array what itself did to it, and so calls
the rest alive until they are used. Here `is_deleted()` asks the server. JAX's own checks before a use do not: the use
itself would fail.
"""
import atexit
import threading

from landbridge import patches, questions

NAME = "deletion"

_internal = threading.local()
_witnesses = {}  # number of devices: the program that makes the client ask


def check():
    from jax._src import array
    from jaxlib import _jax
    if reason := patches.unknown_release("is_deleted() does not see what happened to arrays with the same buffers"):
        return reason
    for owner, name in ((array.ArrayImpl, "is_deleted"), (array.ArrayImpl, "_check_if_deleted"), (array.ArrayImpl, "format"),
                        (_jax.LoadedExecutable, "execute_sharded")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    return questions.check()


def _witness(client, devices):
    """A program that takes an array of so many devices and does nothing: the client does not know what it did to it."""
    found = _witnesses.get(devices)
    if found is None or found.client is not client:
        if not _witnesses:
            atexit.register(_witnesses.clear)  # before the client goes
        found = _witnesses[devices] = questions.make(client, {"landbridgeWitness": {"devices": devices}})
    return found


def install():
    from jax._src import array
    stock = array.ArrayImpl.is_deleted
    stock_format = array.ArrayImpl.format

    def is_deleted(self):
        if stock(self):
            return True
        devices = self.sharding._internal_device_list
        if getattr(_internal, "depth", 0) or len(devices) == 0 or not questions.is_ours(devices[0].client):
            return False
        _witness(devices[0].client, len(devices)).execute_sharded([self])
        return stock(self)

    def _check_if_deleted(self):
        if stock(self):
            raise RuntimeError(f"Array has been deleted with shape={self.aval.str_short()}.")

    @property
    def format(self):
        _internal.depth = getattr(_internal, "depth", 0) + 1
        try:
            return stock_format.__get__(self)
        finally:
            _internal.depth -= 1

    is_deleted.__wrapped__ = stock
    array.ArrayImpl.is_deleted = is_deleted
    array.ArrayImpl._check_if_deleted = _check_if_deleted
    array.ArrayImpl.format = format
