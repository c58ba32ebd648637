"""Programs of linear algebra (see program_sets.py)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax.linalg import geqrf, ormqr  # not exported, but what scipy-like functions are made of
from jax.experimental import sparse
from jax.experimental.layout import Format, Layout
from jax.scipy import linalg as jsl
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from program_sets import main

REAL = [np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]


def general(dtype, *shape, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.randn(*shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.randn(*shape)
    return x.astype(dtype)


def definite(dtype, *shape):
    x = general(dtype, *shape)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + 4 * np.eye(shape[-1])).astype(dtype)


def square(dtype):
    return (general(dtype, 3, 4, 4),)


def spd(dtype):
    return (definite(dtype, 3, 4, 4),)


def tall(dtype):
    return (general(dtype, 3, 5, 3),)


def system(dtype):
    return general(dtype, 3, 4, 4), general(dtype, 3, 4, 2, seed=1)


def bands(dtype):
    d = general(dtype, 2, 5) + 5
    return general(dtype, 2, 5, seed=1), d.astype(dtype), general(dtype, 2, 5, seed=2), general(dtype, 2, 5, 3, seed=3)


def one(dtype):
    return (general(dtype, 4, 4),)


def hessenberg(a):
    h, taus = lax.linalg.hessenberg(a)
    return h, taus, lax.linalg.householder_product(h[..., 1:, :-1], taus)


def apply_q(a):
    packed, taus = geqrf(a)
    return ormqr(packed, taus, jnp.ones(a.shape[:-1] + (2,), a.dtype), left=True, transpose=True)


# name: (inputs of a dtype, program, dtypes)
FAMILIES = {
    "cholesky": (spd, jnp.linalg.cholesky, REAL + COMPLEX),
    "qr": (tall, lambda a: jnp.linalg.qr(a, mode="complete"), REAL + COMPLEX),
    "qr_reduced": (tall, jnp.linalg.qr, REAL + COMPLEX),
    "qr_pivoted": (tall, lambda a: lax.linalg.qr(a, pivoting=True, full_matrices=False), REAL + COMPLEX),
    "lu": (square, lax.linalg.lu, REAL + COMPLEX),
    "svd": (tall, lambda a: jnp.linalg.svd(a, full_matrices=False), REAL + COMPLEX),
    "svd_values": (tall, lambda a: jnp.linalg.svd(a, compute_uv=False), REAL + COMPLEX),
    "svd_by_qr": (tall, lambda a: lax.linalg.svd(a, algorithm=lax.linalg.SvdAlgorithm.QR), REAL + COMPLEX),
    "eig": (square, jnp.linalg.eig, REAL + COMPLEX),
    "eigvals": (square, jnp.linalg.eigvals, REAL + COMPLEX),
    "eigh": (spd, jnp.linalg.eigh, REAL + COMPLEX),
    "schur": (square, lax.linalg.schur, REAL + COMPLEX),
    "hessenberg": (square, hessenberg, REAL + COMPLEX),
    "tridiagonal": (spd, lax.linalg.tridiagonal, REAL + COMPLEX),
    "tridiagonal_solve": (bands, lax.linalg.tridiagonal_solve, REAL + COMPLEX),
    "tridiagonal_solve_perturbed": (bands, lambda *a: lax.linalg.tridiagonal_solve(*a, perturb_singular=True), REAL),
    "triangular_solve": (system, lambda a, b: (
        lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        lax.linalg.triangular_solve(a, jnp.swapaxes(b, -1, -2), conjugate_a=True, transpose_a=True)), REAL + COMPLEX),
    "householder_product": (tall, lambda a: lax.linalg.householder_product(*geqrf(a)), REAL + COMPLEX),
    "ormqr": (tall, apply_q, REAL + COMPLEX),
    "lstsq": (lambda t: (tall(t)[0][0], general(t, 5, 2, seed=1)), lambda a, b: jnp.linalg.lstsq(a, b)[0], REAL + COMPLEX),
    "expm": (one, jsl.expm, REAL + COMPLEX),
    "solve": (system, jnp.linalg.solve, REAL + COMPLEX),
    "det": (square, lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)), REAL + COMPLEX),
    "inv": (square, jnp.linalg.inv, REAL + COMPLEX),
    "pinv": (tall, jnp.linalg.pinv, REAL + COMPLEX),
    "cho_solve": (lambda t: (definite(t, 4, 4), general(t, 4)), lambda a, b: jsl.cho_solve(jsl.cho_factor(a), b),
                  REAL + COMPLEX),
    "eigh_tridiagonal": (lambda t: (general(t, 5), general(t, 4, seed=1)),
                         lambda d, e: jsl.eigh_tridiagonal(d, e, eigvals_only=True), REAL),
    "sqrtm": (lambda t: (definite(t, 4, 4),), jsl.sqrtm, REAL),
}


def families():
    for name, (inputs, program, dtypes) in FAMILIES.items():
        # One program for all element types: compiling is what takes time here.
        yield name, jax.jit(lambda all_args, program=program: [program(*args) for args in all_args]), (
            [inputs(dtype) for dtype in dtypes],)


def csr_product(x, dense):
    matrix = sparse.BCSR.from_bcoo(sparse.BCOO.fromdense(x, nse=9))
    return matrix @ dense


def sunk(x):
    lax.dce_sink(x * 2, prevent_mlir_dce=True)
    return x + 1


def log_likelihood(a, b):
    chol = jnp.linalg.cholesky(a)
    return -jnp.sum(jnp.square(lax.linalg.triangular_solve(chol, b, left_side=True, lower=True))) - jnp.sum(
        jnp.log(jnp.diagonal(chol)))


def forms():
    """Ways to call: derivatives, loops, vmap, donation, layouts, empty and large batches."""
    a, b = definite(np.float64, 4, 4), general(np.float64, 4, 1)
    batch = definite(np.float32, 6, 4, 4)
    yield "sparse", jax.jit(csr_product), (
        np.where(general(np.float32, 4, 5) > 0.3, general(np.float32, 4, 5), 0), general(np.float32, 5, 3))
    yield "dce_sink", jax.jit(sunk), (a,)
    yield "grad_likelihood", jax.jit(jax.grad(log_likelihood)), (a, b)
    yield "grad_eigh", jax.jit(jax.grad(lambda x: jnp.sum(jnp.linalg.eigh(x)[1][:, 0] ** 3))), (a,)
    yield "grad_svd", jax.jit(jax.grad(lambda x: jnp.sum(jnp.linalg.svd(x, compute_uv=False) ** 3))), (a,)
    yield "grad_solve", jax.jit(jax.grad(lambda x, y: jnp.sum(jnp.linalg.solve(x, y)))), (a, b)
    yield "grad_qr", jax.jit(jax.grad(lambda x: jnp.sum(jnp.linalg.qr(x)[1]))), (general(np.float64, 5, 3),)
    yield "hessian_logdet", jax.jit(jax.hessian(lambda x: jnp.linalg.slogdet(x)[1])), (a,)
    yield "vmap", jax.jit(jax.vmap(jax.vmap(jnp.linalg.cholesky))), (batch.reshape(2, 3, 4, 4),)
    yield "vmap_solve", jax.jit(jax.vmap(jnp.linalg.solve, in_axes=(None, 0))), (a, general(np.float64, 3, 4))
    yield "map", jax.jit(lambda x: lax.map(jnp.linalg.eigh, x)), (batch,)
    yield "scan", jax.jit(lambda x: lax.scan(lambda c, m: (jnp.linalg.solve(m, c), jnp.linalg.det(m)),
                                             jnp.ones((4,), x.dtype), x)), (batch,)
    yield "while", jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c @ jnp.linalg.qr(c)[0], x)), (a,)
    yield "cond", jax.jit(lambda x: lax.cond(x[0, 0] > 0, jnp.linalg.inv, lambda v: v, x)), (a,)
    yield "donated", jax.jit(jnp.linalg.cholesky, donate_argnums=0), (a,)
    device = SingleDeviceSharding(jax.devices()[0])
    column_major = Format(Layout(major_to_minor=(1, 0)), device)
    yield "layouts", jax.jit(jnp.linalg.eigh, in_shardings=column_major), (jax.device_put(a, column_major),)
    yield "empty_batch", jax.jit(jnp.linalg.cholesky), (np.zeros((0, 4, 4), np.float32),)
    yield "empty_matrix", jax.jit(jnp.linalg.qr), (np.zeros((2, 0, 0), np.float32),)
    yield "not_definite", jax.jit(jnp.linalg.cholesky), (-a,)
    yield "singular", jax.jit(jnp.linalg.inv), (np.zeros((3, 3), np.float32),)
    yield "larger", jax.jit(jnp.linalg.eigvalsh), (definite(np.float64, 300, 300),)
    yield "eager", jnp.linalg.svd, (general(np.float32, 4, 3),)


def sharded():
    """Over four devices: batches and matrices divided, programs of all devices and of each."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    rows = NamedSharding(mesh, P("x"))
    batch, right = definite(np.float32, 8, 4, 4), general(np.float32, 8, 4, 2)
    put = functools.partial(jax.device_put, device=rows)
    yield "cholesky", jax.jit(jnp.linalg.cholesky, out_shardings=rows), (put(batch),)
    yield "eigh", jax.jit(lambda x: tuple(jnp.linalg.eigh(x)), out_shardings=(rows, rows)), (put(batch),)
    yield "svd", jax.jit(jnp.linalg.svd), (put(batch),)
    yield "solve", jax.jit(jnp.linalg.solve), (put(batch), put(right))
    yield "qr_sum", jax.jit(lambda x: jnp.sum(jnp.linalg.qr(x)[1])), (put(batch),)
    yield "matrix", jax.jit(jnp.linalg.eigh), (jax.device_put(definite(np.float32, 8, 8), rows),)
    yield "grad", jax.jit(jax.grad(lambda x, y: jnp.sum(jnp.linalg.solve(x, y) ** 2))), (put(batch), put(right))
    each = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"))
    yield "shard_map", jax.jit(each(jnp.linalg.cholesky, out_specs=P("x"))), (put(batch),)
    yield "shard_map_psum", jax.jit(each(lambda x: lax.psum(jnp.sum(jnp.linalg.eigh(x)[0], 0), "x"), out_specs=P())), (
        put(batch),)


def exchanges(text):
    return "all-" in text


def divided():
    """Batches that stay divided over four devices: every family of calls, and the ways in which a batch can lie. Values
    travel between devices in the same of them as in plain JAX."""
    for case in ways_to_divide():
        yield *case, exchanges
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("y", "x"))
    part = jax.shard_map(jnp.linalg.cholesky, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    batch = jax.device_put(definite(np.float32, 8, 4, 4), NamedSharding(mesh, P(("x", "y"))))
    yield "within_shard_map", jax.jit(part), (batch,), exchanges


def ways_to_divide():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("y", "x"))
    rows, both = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(("x", "y")))
    put = lambda tree, sharding=both: jax.device_put(tree, sharding)  # noqa: E731
    batched = ("cholesky", "qr", "qr_pivoted", "lu", "svd", "eig", "eigh", "schur", "hessenberg", "tridiagonal",
               "tridiagonal_solve", "triangular_solve", "householder_product", "ormqr", "solve", "det")

    def widened(value):  # to a batch of eight, each another
        shares = 1 + np.arange(8).reshape((8,) + (1,) * (value.ndim - 1)) / 8
        return (np.resize(value, (8,) + value.shape[1:]) * shares).astype(value.dtype)

    for dtype in (np.float32, np.complex128):
        args = {name: jax.tree.map(widened, FAMILIES[name][0](dtype)) for name in batched}
        program = jax.jit(lambda inputs: {name: FAMILIES[name][1](*inputs[name]) for name in batched})
        yield f"families_{np.dtype(dtype)}", program, (put(args),)
    batch, right = definite(np.float32, 8, 4, 4), general(np.float32, 8, 4, 2)
    grid = definite(np.float64, 4, 2, 3, 3)
    cholesky = jnp.linalg.cholesky
    yield "over_one_axis", jax.jit(cholesky), (put(batch, rows),)
    yield "two_dimensions", jax.jit(cholesky), (put(grid, NamedSharding(mesh, P("x", "y"))),)
    yield "second_dimension", jax.jit(cholesky), (put(grid, NamedSharding(mesh, P(None, "x"))),)
    yield "batch_and_matrix", jax.jit(cholesky), (put(batch, NamedSharding(mesh, P("y", "x"))),)
    yield "matrix_only", jax.jit(cholesky), (put(batch, NamedSharding(mesh, P(None, "x", "y"))),)
    yield "uneven", jax.jit(lambda x: jnp.linalg.eigh(x[1:7])[0] * 2), (put(batch),)
    yield "to_another_axis", jax.jit(cholesky, out_shardings=NamedSharding(mesh, P("y"))), (put(batch, rows),)
    yield "to_all", jax.jit(cholesky, out_shardings=NamedSharding(mesh, P())), (put(batch),)
    yield "from_all", jax.jit(cholesky, out_shardings=both), (put(batch, NamedSharding(mesh, P())),)
    yield "donated", jax.jit(cholesky, donate_argnums=0, out_shardings=both), (put(batch),)
    yield "shared_operand", jax.jit(jax.vmap(jnp.linalg.solve, in_axes=(None, 0))), (batch[0], put(right))
    yield "loop", jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c @ jnp.linalg.qr(c)[0], x)), (put(batch),)
    yield "scan", jax.jit(lambda x: lax.scan(lambda c, _: (jnp.linalg.inv(c), jnp.linalg.det(c)), x, length=3)), (
        put(batch),)
    yield "cond", jax.jit(lambda x: lax.cond(x[0, 0, 0] > 0, jnp.linalg.inv, lambda v: v, x)), (put(batch),)
    yield "not_definite", jax.jit(cholesky), (put(np.concatenate([batch[:4], -batch[4:]])),)
    yield "grad", jax.jit(jax.grad(lambda x, y: jnp.sum(jnp.linalg.solve(x, y) ** 2))), (put(batch), put(right))
    column_major = Format(Layout(major_to_minor=(0, 2, 1)), both)
    formats = {"in_shardings": column_major, "out_shardings": column_major}
    yield "layouts", jax.jit(cholesky, **formats), (put(batch, column_major),)


SETS = {"families": families, "forms": forms, "sharded": sharded, "divided": divided}



if __name__ == "__main__":
    main(SETS)
