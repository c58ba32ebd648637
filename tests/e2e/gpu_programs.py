"""What a user does on workers with devices of their own memory, against numpy. Prints one JSON line: findings by name."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

devices = jax.devices()
first, last = devices[0], devices[-1]
slices = sorted({d.slice_index for d in devices})
of_slice = {s: [d for d in devices if d.slice_index == s] for s in slices}
found = {
    "platform": first.platform,
    "kind": first.device_kind,
    "devices": len(devices),
    "slices": len(slices),
    "memories": sorted(m.kind for m in first.addressable_memories()),
}
wrong = []


def same(name, got, want):
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape or not np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
        wrong.append(name)


rng = np.random.default_rng(0)
whole = rng.integers(-8, 8, size=(512, 1024)).astype(np.float32)  # 2 MiB; sums of small integers are exact

for dtype in ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64", "int4", "uint4"):
    x = jnp.asarray(rng.integers(0, 2, size=(33, 7))).astype(dtype)
    host = np.asarray(jax.device_put(np.asarray(x), first))
    same(f"there and back, {dtype}", jax.device_put(host, last), host)
    same(f"from device to device, {dtype}", jax.device_put(jax.device_put(host, first), last), host)
same("empty", jax.device_put(np.zeros((0, 3), np.float32), first), np.zeros((0, 3), np.float32))
same("scalar", jax.device_put(np.float32(3), first), np.float32(3))
same("transposed", jax.device_put(whole.T, first), whole.T)
same("every other", jax.device_put(whole[::2, ::-3], first), whole[::2, ::-3])
same("large, there and back", jax.device_put(whole, first), whole)
same("large, to the last device", jax.device_put(jax.device_put(whole, first), last), whole)

f = jax.jit(lambda a: (a @ a.T).sum(axis=1) * 2 + 1)
same("matmul", f(jax.device_put(whole, first)), (whole @ whole.T).sum(axis=1) * 2 + 1)
g = jax.jit(jax.grad(lambda a: (a * a * a).sum()))
same("grad", g(jax.device_put(whole, last)), 3 * whole * whole)

donating = jax.jit(lambda a: a + 1, donate_argnums=0)
x = jax.device_put(whole, first)
sent = jax.device_put(x, last)  # still on its way when its source is given up
y = donating(x)
same("donated", y, whole + 1)
same("sent before it was donated", sent, whole)
if not x.is_deleted():
    wrong.append("donation deletes")
for _ in range(20):
    y = donating(y)
same("a chain of donations", y, whole + 21)

for s, group in of_slice.items():
    mesh = Mesh(np.array(group), ("d",))
    rows, columns, copies = (NamedSharding(mesh, p) for p in (P("d"), P(None, "d"), P()))
    a = jax.device_put(whole, rows)
    same(f"slice {s}, rows", a, whole)
    if len({d.virtual_task_index for d in group}) == 1:
        same(f"slice {s}, sum", jax.jit(lambda v: v.sum(axis=0), out_shardings=copies)(a), whole.sum(axis=0))
        total = jax.shard_map(lambda v: jax.lax.psum(v, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
        same(f"slice {s}, psum", jax.jit(total)(a), whole.reshape(len(group), -1, 1024).sum(axis=0))
    same(f"slice {s}, elementwise", jax.jit(lambda v: v * 3 - 1)(a), whole * 3 - 1)
    for name, to in (("columns", columns), ("copies", copies), ("one device", SingleDeviceSharding(group[-1]))):
        same(f"slice {s}, rows to {name}", jax.device_put(a, to), whole)
    narrow = jnp.arange(8 * 16, dtype=jnp.int32).astype("int4").reshape(8, 16)
    same(f"slice {s}, int4 rows to columns", jax.device_put(jax.device_put(np.asarray(narrow), rows), columns), narrow)
if len(slices) > 1:
    one, other = (Mesh(np.array(of_slice[s]), ("d",)) for s in slices[:2])
    a = jax.device_put(whole, NamedSharding(one, P("d")))
    same("slice to slice", jax.device_put(a, NamedSharding(other, P("d"))), whole)
    same("slice to slice, other axis", jax.device_put(a, NamedSharding(other, P(None, "d"))), whole)
    same("slice to slice, computed", jax.device_put(jax.jit(lambda v: v + 2)(a), NamedSharding(other, P(None, "d"))), whole + 2)

pinned = SingleDeviceSharding(first, memory_kind="pinned_host")
p = jax.device_put(jax.device_put(whole, first), pinned)
same("pinned host", p, whole)
same("back from pinned host", jax.jit(lambda v: v - 1)(jax.device_put(p, SingleDeviceSharding(first))), whole - 1)

many = jax.device_put([np.full((3,), i, np.int32) for i in range(200)], first)
same("many", np.stack([np.asarray(m) for m in many]), np.repeat(np.arange(200, dtype=np.int32)[:, None], 3, axis=1))


def refused(name, call):
    try:
        jax.block_until_ready(call())
        jax.effects_barrier()
        found[name] = "not refused"
    except Exception as error:  # what it says is looked at by the test
        found[name] = str(error)[:2000]


small = jax.device_put(np.ones(3, np.float32), first)
refused("callback", lambda: jax.jit(
    lambda v: jax.pure_callback(lambda h: np.asarray(h) + 1, jax.ShapeDtypeStruct((3,), jnp.float32), v))(small))
if len(slices) > 1:
    everybody = Mesh(np.array(devices), ("d",))
    refused("over slices", lambda: jax.jit(lambda v: v + 1)(jax.device_put(whole, NamedSharding(everybody, P("d")))))
refused("cholesky", lambda: jnp.linalg.cholesky(jax.device_put(np.eye(3, dtype=np.float32), first)))
same("after what was refused", f(jax.device_put(whole, first)), (whole @ whole.T).sum(axis=1) * 2 + 1)

found["wrong"] = wrong
print(json.dumps(found))
