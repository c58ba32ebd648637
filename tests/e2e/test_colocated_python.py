"""Functions of colocated Python: the cluster runs none and says so; JAX then runs them in the client."""

import os

import jax
import numpy as np
import pytest
from jax.experimental import colocated_python
from jax.experimental.colocated_python import func as colocated_func
from jaxlib import xla_client
from servers import assert_no_forbidden_words


def test_a_function_runs_in_the_client():
    cpu = colocated_python.colocated_cpu_devices(jax.devices()[:1])

    @colocated_python.colocated_python
    def here(x):
        return x + np.float32(os.getpid())

    x = jax.device_put(np.arange(4, dtype=np.float32), cpu[0])
    np.testing.assert_array_equal(np.asarray(here(x)), np.arange(4, dtype=np.float32) + np.float32(os.getpid()))


def test_the_refusal_is_clear():
    """What JAX catches before it falls back."""
    programs = colocated_func.ifrt_programs
    devices = xla_client.DeviceList((jax.devices()[0],))
    program = programs.make_colocated_python_program("f", b"a pickle that nobody reads", devices, (), ())
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        jax.devices()[0].client.compile_ifrt_program(program, programs.make_colocated_python_compile_options())
    text = str(e.value)
    assert text.startswith("UNIMPLEMENTED: PjRtCompiler requires an HloProgram: this cluster runs no Python, so functions "
                           "of colocated Python run in the client [log: "), text
    assert_no_forbidden_words(text)
    assert float(jax.jit(lambda v: v + 1)(1.0)) == 2
