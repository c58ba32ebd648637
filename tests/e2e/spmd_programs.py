"""SPMD programs over eight devices (see program_sets.py): what the compiler partitions, and collectives by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from program_sets import main

DTYPES = [np.int8, np.uint16, np.int32, np.int64, np.float16, jnp.bfloat16, np.float32, np.float64, np.complex64,
          np.complex128, jnp.float8_e4m3fn, np.bool_]
BOTH = P(("a", "b"))


def data(*shape, dtype=np.float32, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.randn(*shape) * 4
    if np.dtype(dtype).kind == "c":
        return (x + 1j * rng.randn(*shape)).astype(dtype)
    return x.astype(np.float32).astype(dtype)


def mesh_of(devices=slice(None), shape=(4, 2), names=("a", "b")):
    return Mesh(np.array(jax.devices()[:8][devices]).reshape(shape), names)


def put(x, *spec, mesh=None):
    return jax.device_put(x, NamedSharding(mesh or mesh_of(), P(*spec)))


def operations(v, w, i):
    """Of a matrix [16, 8], by kind."""
    columns = i % 8
    yield "reductions", lambda: (
        v.sum(0), v.sum(1), v.max(), v.min(0), v.prod(1), (v > 0).any(0), (v > 0).all(1), v.mean(), v.std(0),
        jnp.argmax(v, 0), jnp.argmin(v, 1))
    yield "scans", lambda: (
        jnp.cumsum(v, 0), jnp.cumprod(v / 4, 1), lax.cummax(v, 0), jnp.sort(v, 0), jnp.argsort(v, 1), lax.top_k(v, 3))
    yield "moves", lambda: (
        v.T, v[::-1], jnp.roll(v, 3, 0), jnp.roll(v, 1, 1), v[3:11:2, 1:7], v.reshape(8, 16), v.reshape(-1),
        jnp.concatenate([v, v * 2], 0), jnp.pad(v, ((1, 2), (3, 0))), jnp.repeat(v, 2, 1), jnp.tile(v, (2, 1)))
    yield "indexing", lambda: (
        v[i], v[:, columns], v.at[i].add(1.0), v.at[:, 2].set(0.0), jnp.take_along_axis(v, columns[:, None], 1),
        lax.dynamic_slice(v, (i[0] % 4, i[1] % 3), (6, 5)), jax.ops.segment_sum(v, i % 5, 5))
    yield "products", lambda: (v @ w, w.T @ v.T, v @ v.T, v.T @ v, jnp.outer(v[:, 0], v[0]))
    yield "fft", lambda: (jnp.fft.fft(v, axis=0), jnp.fft.rfft2(v), jnp.fft.ifft(v, axis=1))
    yield "loops", lambda: (
        lax.fori_loop(0, 3, lambda _, c: c @ (c.T @ v) / 100, v),
        lax.while_loop(lambda c: c.sum() < 500, lambda c: c + jnp.abs(c).mean(0), v),
        lax.scan(lambda c, row: (c + row.sum(), c * row), jnp.zeros((), v.dtype), v))
    yield "branches", lambda: (
        lax.cond(v.sum() > 0, lambda u: u @ u.T, lambda u: -u @ u.T, v),
        lax.switch((v[0, 0] > 0).astype(int), [lambda u: u.sum(0), lambda u: u.max(0)], v))
    yield "uneven", lambda: (v[:13] * 2, v[:13].sum(0), jnp.sort(v[1:14], 0), v[:11] @ v[:11].T, v[:0].sum(0))


def partitioned():
    x, w, i = data(16, 8), put(data(8, 12, seed=1), "b"), np.arange(16, dtype=np.int32)[::-1] * 5 % 16
    kinds = [kind for kind, _ in operations(x, w, i)]
    for name, spec in {"both": ("a", "b"), "crossed": ("b", "a"), "folded": (None, ("b", "a"))}.items():
        for kind in kinds:
            program = jax.jit(lambda *args, kind=kind: dict(operations(*args))[kind]())
            yield f"{kind}_{name}", program, (put(x, *spec), w, i)
    turned = mesh_of(slice(None, None, -1), (2, 4))
    yield "turned", jax.jit(lambda v: (v @ v.T, v.sum(0), jnp.roll(v, 1, 0))), (put(x, "b", "a", mesh=turned),)
    constrain = lambda v, *spec: lax.with_sharding_constraint(v * 1, NamedSharding(mesh_of(), P(*spec)))  # noqa: E731
    specs = (("a",), (None, "a"), ("b", "a"), (("b", "a"),), ())
    yield "reshards", jax.jit(lambda v: [constrain(v, *spec) for spec in specs]), (put(x, "a", "b"),)
    columns = Format(Layout(major_to_minor=(1, 0)), NamedSharding(mesh_of(), P("a", "b")))
    yield "layouts", jax.jit(lambda v: (v + v.sum(0), v @ v.T), in_shardings=columns, out_shardings=columns), (
        jax.device_put(x, columns),)
    placed = NamedSharding(mesh_of(), P("a", "b"))
    yield "no_inputs", jax.jit(lambda: jnp.arange(32.0).reshape(8, 4), out_shardings=placed), ()
    yield "dtypes", jax.jit(lambda vs: [(v.T, v[::-1], jnp.roll(v, 5, 0), v.reshape(-1)) for v in vs]), (
        [put(data(16, 8, dtype=dtype), "a", "b") for dtype in DTYPES],)
    yield "random", jax.jit(lambda k: (jax.random.normal(k, (16, 8)), jax.random.permutation(k, 16)), out_shardings=(
        NamedSharding(mesh_of(), P("a", "b")), NamedSharding(mesh_of(), P("a")))), (jax.random.key(3),)


def models():
    image, kernel = data(8, 12, 12, 3), data(3, 3, 3, 4, seed=2)
    conv = functools.partial(lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    yield "conv", jax.jit(lambda *vs: [conv(v, kernel, (1, 1)) for v in vs] + [conv(vs[1], kernel, (2, 2))]), (
        put(image, "a"), put(image, None, "a", "b"), put(image, "b", "a"))
    yield "conv_grad", jax.jit(jax.grad(lambda k, v: (conv(v, k, (1, 1)) ** 2).sum())), (kernel, put(image, "b", "a"))
    yield "pool", jax.jit(lambda v: (
        lax.reduce_window(v, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        lax.reduce_window(v, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"))), (put(image, None, "a", "b"),)

    def attention(q, k, v):
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)

    heads = [data(4, 8, 2, 6, seed=seed) for seed in (1, 2, 3)]
    yield "attention", jax.jit(jax.value_and_grad(lambda *a: (attention(*a) ** 2).sum(), argnums=(0, 1, 2))), [
        put(h, "a", None, "b") for h in heads]
    yield "attention_over_sequence", jax.jit(attention), [put(h, None, "a", "b") for h in heads]

    def loss(p, x):
        logits = jax.nn.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])

    weights = {"w1": data(8, 32) / 9, "b1": data(32), "w2": data(32, 8, seed=4) / 9}
    x = data(16, 8)
    tensor = {"w1": put(weights["w1"], None, "b"), "b1": put(weights["b1"], "b"), "w2": put(weights["w2"], "b")}
    step = jax.jit(lambda p, x: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x)), donate_argnums=0)
    yield "tensor_parallel", step, (tensor, put(x, "a"))
    fsdp = {name: put(value, ("a", "b")) for name, value in weights.items()}
    yield "fsdp", jax.jit(jax.value_and_grad(jax.checkpoint(loss)), out_shardings=(
        None, jax.tree.map(lambda t: t.sharding, fsdp))), (fsdp, put(x, ("a", "b")))


def by_hand():
    def each(f):
        return jax.jit(jax.shard_map(f, mesh=mesh_of(), in_specs=BOTH, out_specs=BOTH, check_vma=False))

    x = put(data(64, 16), ("a", "b"))
    for axes in ("a", "b", ("a", "b"), ("b", "a")):
        name = "".join(axes)
        yield f"sums_{name}", each(lambda v: (
            lax.psum(v, axes), lax.pmax(v, axes), lax.pmin(v, axes), lax.pmean(v, axes),
            v * 0 + lax.axis_index(axes))), (x,)
        yield f"gathers_{name}", each(lambda v: [
            lax.all_gather(v, axes, axis=axis, tiled=tiled) for axis in (0, 1) for tiled in (False, True)]), (x,)
        yield f"scatters_{name}", each(lambda v: [
            lax.psum_scatter(v, axes, scatter_dimension=axis, tiled=True) for axis in (0, 1)]), (x,)
        yield f"exchanges_{name}", each(lambda v: [
            lax.all_to_all(v, axes, split, concat, tiled=True) for split in (0, 1) for concat in (0, 1)]), (x,)
    yield "permutes", each(lambda v: (
        lax.ppermute(v, "a", [(0, 2), (2, 1)]), lax.ppermute(v, ("a", "b"), [(i, (i * 3 + 1) % 8) for i in range(8)]),
        lax.pshuffle(v, "a", [3, 1, 0, 2]))), (x,)
    yield "groups", jax.pmap(lambda v: (
        lax.psum(v, "i", axis_index_groups=[[0, 3], [1, 2], [4, 7], [5, 6]]),
        lax.all_gather(v, "i", axis_index_groups=[[0, 1, 2, 3], [7, 6, 5, 4]]),
        lax.psum(v, "i", axis_index_groups=[[0, 1, 2], [3, 4, 5, 6, 7]])), "i"), (data(8, 5),)
    ring = [(i, (i + 1) % 4) for i in range(4)]
    yield "ring", each(lambda v: lax.fori_loop(
        0, 4, lambda i, c: (lax.ppermute(c[0], "a", ring), c[1] + c[0] * i), (v, v * 0))[1]), (x,)
    partly = jax.shard_map(lambda v: lax.psum(v @ v.T, "a") + v.sum(), mesh=mesh_of(), in_specs=P("a"), out_specs=P(),
                           axis_names={"a"}, check_vma=False)
    yield "partly", jax.jit(partly), (put(data(16, 8), "a", "b"),)
    summed = [dtype for dtype in DTYPES if dtype not in (np.bool_, jnp.float8_e4m3fn)]
    yield "dtypes", each(lambda vs: [(
        lax.all_gather(v, "b", tiled=True), lax.ppermute(v, "a", [(0, 1), (1, 0), (2, 3)]),
        lax.all_to_all(v, "a", 0, 0, tiled=True)) for v in vs]), (
            [put(data(64, 4, dtype=t), ("a", "b")) for t in DTYPES],)
    yield "dtypes_summed", each(lambda vs: [
        (lax.psum(v, "a"), lax.psum_scatter(v, ("a", "b"), tiled=True)) for v in vs]), (
            [put(data(64, 4, dtype=t), ("a", "b")) for t in summed],)


SETS = {"partitioned": partitioned, "models": models, "by_hand": by_hand}


if __name__ == "__main__":
    main(SETS)
