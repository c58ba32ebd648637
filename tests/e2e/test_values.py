"""Round trips and programs on one device, compared with numpy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32, np.complex64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2,
]
WIDE = [np.int64, np.uint64, np.float64, np.complex128]


def sample(dtype, shape):
    rng = np.random.RandomState(7)
    if dtype is np.bool_:
        return rng.rand(*shape) > 0.5
    if np.dtype(dtype).kind == "c":
        return np.asarray(rng.randn(*shape) + 1j * rng.randn(*shape)).astype(dtype)
    limit = 2 if np.dtype(dtype).name in ("int2", "uint2") else 7
    return np.asarray(rng.randint(0, limit, shape)).astype(dtype)


def same(a, b):
    """Equal dtype, shape and bits (numpy cannot compare all of ml_dtypes)."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 0, 3)], ids=str)
def test_round_trip(dtype, shape):
    x = np.asarray(sample(dtype, shape), dtype)
    same(jax.device_put(x), x)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: np.dtype(d).name)
def test_round_trip_wide(dtype):
    with jax.enable_x64(True):
        x = sample(dtype, (3, 4))
        y = jax.device_put(x)
        assert y.dtype == np.dtype(dtype)
        same(y, x)
        np.testing.assert_array_equal(np.asarray(y + y), x + x)


def test_strings():
    x = np.array(["alpha", "", "γδ"], dtype=np.dtypes.StringDType())
    y = jax.device_put(x, jax.devices()[0])
    np.testing.assert_array_equal(np.asarray(y), x)


def test_strides():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (x.T, x.transpose(1, 0, 2), x[:, ::2], x[..., 1:3], x[::-1], np.broadcast_to(x[0, 0], (5, 4))):
        same(jax.device_put(view), view)


def test_bigger_than_a_chunk():
    x = np.random.RandomState(0).rand(3_000_001).astype(np.float32)
    y = jax.device_put(x)
    same(y, x)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(y)), x + 1)


def test_big_transposed():
    x = np.random.RandomState(0).rand(1024, 777).astype(np.float32)
    same(jax.device_put(x.T), x.T)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16],
                         ids=lambda d: np.dtype(d).name)
def test_jit_on_small_types(dtype):
    x = sample(dtype, (4, 6))
    y = jax.jit(lambda v: v.T)(jax.device_put(x))
    same(y, x.T)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v.astype(jnp.float32) + 1)(x)), x.astype(np.float32) + 1)


def test_grad_vmap_scan_while_cond():
    def f(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    w = np.random.RandomState(0).randn(4, 3).astype(np.float32)
    x = np.random.RandomState(1).randn(5, 4).astype(np.float32)
    g = jax.jit(jax.grad(f))(w, x)
    t = np.tanh(x @ w)
    np.testing.assert_allclose(np.asarray(g), x.T @ (2 * t * (1 - t * t)), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(jax.vmap(lambda r: r @ w)(x)), x @ w, rtol=1e-5)
    carry, ys = jax.jit(lambda v: jax.lax.scan(lambda c, a: (c + a, c * a), jnp.float32(0), v))(
        np.arange(6, dtype=np.float32))
    assert float(carry) == 15
    np.testing.assert_array_equal(np.asarray(ys), [0, 0, 2, 9, 24, 50])
    assert int(jax.jit(lambda n: jax.lax.while_loop(lambda s: s < n, lambda s: s * 2, 1))(1000)) == 1024
    h = jax.jit(lambda p, v: jax.lax.cond(p, lambda a: a + 1, lambda a: a - 1, v))
    assert float(h(True, 1.0)) == 2 and float(h(False, 1.0)) == 0


def test_random_sort_fft():
    k = jax.random.key(3)
    a = np.asarray(jax.random.normal(k, (1000,)))
    assert abs(a.mean()) < 0.2 and 0.8 < a.std() < 1.2
    assert np.array_equal(a, np.asarray(jax.random.normal(jax.random.key(3), (1000,))))
    np.testing.assert_array_equal(np.asarray(jnp.sort(a)), np.sort(a))
    np.testing.assert_allclose(np.asarray(jnp.fft.fft(a)), np.fft.fft(a), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(np.asarray(jnp.argsort(a)), np.argsort(a, kind="stable"))


def test_donation():
    step = jax.jit(lambda s, d: s + d, donate_argnums=0)
    s = jnp.zeros((128,), jnp.float32)
    first = s
    for i in range(50):
        s = step(s, float(i))
    assert float(s[0]) == sum(range(50))
    assert first.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(first)
    with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
        step(first, 1.0)


def test_read_then_donate():
    step = jax.jit(lambda v: v * 2, donate_argnums=0)
    for _ in range(20):
        x = jax.device_put(np.full((300_000,), 3, np.float32))
        x.copy_to_host_async()
        y = step(x)
        assert float(np.asarray(y)[-1]) == 6


def test_metadata_of_compiled():
    c = jax.jit(lambda a, b: a @ b).lower(jnp.ones((8, 8)), jnp.ones((8, 8))).compile()
    stats = c.memory_analysis()
    assert stats.argument_size_in_bytes == 512 and stats.output_size_in_bytes == 256
    assert len(c.input_shardings[0]) == 2
    np.testing.assert_array_equal(np.asarray(c(jnp.ones((8, 8)), jnp.ones((8, 8)))), np.full((8, 8), 8))


def test_constants_and_no_outputs():
    big = np.random.RandomState(0).rand(1_200_000).astype(np.float32)   # 4.8 MB inside the program
    assert abs(float(jax.jit(lambda: jnp.sum(big))()) - big.sum()) < 1
    assert jax.jit(lambda v: None)(1.0) is None
    assert jax.jit(lambda a, b: a)(1.0, 2.0) == 1.0


def test_float0():
    g = jax.grad(lambda i: jnp.float32(i) * 0.0, allow_int=True)(3)
    assert g.dtype == jax.dtypes.float0
