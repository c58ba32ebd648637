"""Memory kinds, as text to compare: moves between them, programs that take and give them, moves inside programs.

    memory_programs.py     one JSON object: what each case gave (sum, dtype, kind, devices), or the kind of its error
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

KINDS = ["device", "pinned_host", "unpinned_host"]
FOUND = {}


def note(name, call):
    try:
        FOUND[name] = [
            [float(np.asarray(a, np.float64).sum()), str(a.dtype), a.sharding.memory_kind,
             sorted(s.device.id for s in a.addressable_shards), [s.data.shape for s in a.addressable_shards]]
            for a in jax.tree.leaves(call())]
    except Exception as error:  # noqa: BLE001  the comparison shows it
        FOUND[name] = f"{type(error).__name__}: {error}"[:300]


def of_kind(kind, where, sharding):
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    there, on_device = sharding.with_memory_kind(kind), sharding.with_memory_kind("device")
    put = jax.device_put
    twice = lambda v: v * 2  # noqa: E731
    note(f"{where} {kind}: put", lambda: put(x, there))
    for other in KINDS:
        note(f"{where} {kind}: to {other}", lambda: put(put(x, there), sharding.with_memory_kind(other)))
    note(f"{where} {kind}: output", lambda: jax.jit(twice, out_shardings=there)(put(x, on_device)))
    note(f"{where} {kind}: input", lambda: jax.jit(twice, in_shardings=there, out_shardings=on_device)(put(x, there)))
    note(f"{where} {kind}: both", lambda: jax.jit(twice, in_shardings=there, out_shardings=there)(put(x, there)))
    note(f"{where} {kind}: not said", lambda: jax.jit(twice)(put(x, there)))
    note(f"{where} {kind}: moved inside", lambda: jax.jit(lambda v: put(v * 2, there), out_shardings=there)(put(x, on_device)))
    note(f"{where} {kind}: there and back inside",
         lambda: jax.jit(lambda v: put(put(v * 2, there), on_device) + 1)(put(x, on_device)))
    note(f"{where} {kind}: donated",
         lambda: jax.jit(twice, donate_argnums=0, in_shardings=there, out_shardings=there)(put(x, there)))
    note(f"{where} {kind}: two outputs",
         lambda: jax.jit(lambda v: (v + 1, v - 1), out_shardings=(there, on_device))(put(x, on_device)))
    note(f"{where} {kind}: loop", lambda: [jax.jit(lambda v: put(put(v, there) * 1, on_device) + 1)(put(x, on_device))
                                           for _ in range(3)])


def offloaded():
    """Activations that the backward pass fetches from the host."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host")
    loss = jax.checkpoint(lambda v: jnp.sum(checkpoint_name(jnp.sin(v), "h") ** 2), policy=policy)
    note("activations", lambda: jax.jit(jax.grad(loss))(np.arange(8, dtype=np.float32)))

    def step(params, momentum, g):
        """An optimizer whose state rests on the host."""
        momentum = jax.device_put(momentum, SingleDeviceSharding(jax.devices()[0], memory_kind="device")) * 0.5 + g
        return params - momentum, jax.device_put(momentum, host)

    host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    device = host.with_memory_kind("device")
    run = jax.jit(step, out_shardings=(device, host), donate_argnums=(0, 1))
    state = jax.device_put(np.ones(4, np.float32), device), jax.device_put(np.zeros(4, np.float32), host)
    for i in range(4):
        state = run(*state, np.full(4, i, np.float32))
    note("optimizer", lambda: state)


def main():
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    for kind in KINDS:
        of_kind(kind, "one", SingleDeviceSharding(jax.devices()[1]))
        of_kind(kind, "divided", NamedSharding(mesh, P("x")))
        of_kind(kind, "replicated", NamedSharding(mesh, P()))
    offloaded()
    note("default", lambda: jax.device_put(1.0))
    FOUND["kinds"] = sorted(m.kind for m in jax.devices()[0].addressable_memories())
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
