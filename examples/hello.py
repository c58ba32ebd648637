"""The smallest program: one matrix product per slice, the first one's result moved to the second."""
import jax
import jax.numpy as jnp

devices = jax.devices()
first, last = devices[0], devices[-1]  # on two slices: one of each
x = jax.device_put(jnp.arange(16.0).reshape(4, 4), first)
y = jax.jit(lambda a: a @ a.T)(x)  # runs on `first`
z = jax.device_put(y, last) + 1  # travels from device to device, then runs on `last`
print(len(devices), "devices;", "sum", float(z.sum()), "on", z.devices())
