"""What is compiled once, though it was written twice."""

import jax
import jax.numpy as jnp
import numpy as np


def compiles(cluster):
    return cluster.status()["proxy"]["compile"]["compiles"]


def test_the_same_program_from_two_lines_is_compiled_once(cluster):
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])
    first = jax.jit(lambda v: jnp.sin(v) * 2 + jnp.dot(v, v))
    second = jax.jit(lambda v: jnp.sin(v) * 2 + jnp.dot(v, v))
    a = np.asarray(first(x))
    before = compiles(cluster)
    b = np.asarray(second(x))
    assert compiles(cluster) == before
    np.testing.assert_array_equal(a, b)
    # Another program is another one.
    np.asarray(jax.jit(lambda v: jnp.cos(v) * 2 + jnp.dot(v, v))(x))
    assert compiles(cluster) == before + 1


def test_operations_keep_their_names(cluster):
    """In what profiles and HLO show; without files and lines."""
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])

    def twice(v):
        with jax.named_scope("the_scope"):
            return jnp.sin(v) * 2

    text = jax.jit(twice).lower(x).as_text(debug_info=True)
    assert "jit(twice)/the_scope/sin" in text
    assert ".py" not in text


def test_the_option_turns_it_off(cluster):
    code = """
    import jax, jax.numpy as jnp, numpy as np
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])
    text = jax.jit(lambda v: jnp.sin(v) * 2).lower(x).as_text(debug_info=True)
    print("lines" if "<string>" in text else "no lines")
    """
    assert "no lines" in cluster.script(code).stdout
    assert "no lines" not in cluster.script(code, LANDBRIDGE_PATCHES="-locations").stdout
