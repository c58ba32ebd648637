"""Mistakes give clear errors and leave everything else working."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FORBIDDEN = ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")


def still_works():
    assert float(jax.jit(lambda v: v + 1)(1.0)) == 2.0


def test_out_of_memory_of_one_launch():
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as e:
        jax.jit(lambda: jnp.zeros((1 << 42,), jnp.float32))().block_until_ready()
    assert not any(w in str(e.value) for w in FORBIDDEN)
    still_works()


def test_unknown_custom_call():
    with pytest.raises(Exception, match="UNIMPLEMENTED") as e:
        jax.jit(lambda v: jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((2,), np.float32))(v))(
            np.ones(2, np.float32))
    assert "no_such_target" in str(e.value)
    assert not any(w in str(e.value) for w in FORBIDDEN)
    still_works()


def test_error_spreads_to_dependents():
    bad = jax.jit(lambda: jnp.zeros((1 << 42,), jnp.float32))
    try:
        x = bad()
        y = jax.jit(lambda v: v[:4] + 1)(x)
        with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
            np.asarray(y)
    except Exception as e:   # noqa: BLE001  the first call of an executable may raise itself
        assert "RESOURCE_EXHAUSTED" in str(e)
    still_works()


def test_deleted_array():
    x = jnp.ones(4) + 1
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1
    still_works()


def test_shape_error_is_jax_own():
    with pytest.raises(TypeError):
        jnp.ones(3) + jnp.ones(4)
    still_works()
