"""Device.memory_stats(): figures of the device that is meant, from its worker.

The stock proxy client has no message for it and raises. Here: bytes_in_use, bytes_limit and peak_bytes_in_use, as they
are when what the client has dispatched before is done or under way.
"""
from landbridge import patches, questions

NAME = "memory_stats"


def check():
    from jaxlib import _jax
    if reason := patches.unknown_release("memory_stats() raises"):
        return reason
    if not hasattr(_jax.Device, "memory_stats"):
        return "jaxlib's Device has no memory_stats"
    return questions.check()


def install():
    from jaxlib import _jax
    stock = _jax.Device.memory_stats

    def memory_stats(self):
        if not questions.is_ours(self.client):
            return stock(self)
        return questions.ask(self.client, {"memoryStats": {"device_id": self.id}})

    memory_stats.__wrapped__ = stock
    _jax.Device.memory_stats = memory_stats
