"""Custom calls of users: a library given to the cluster, called with stock jax.ffi."""

import pathlib
import subprocess
import sys

import jax
import pytest
from conftest import LANDBRIDGE, fresh_cluster

SOURCE = pathlib.Path(__file__).with_name("ffi_example.cc")
FORBIDDEN = ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("ffi") / "libexample.so"
    subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{jax.ffi.include_dir()}",
                    "-o", out, SOURCE], check=True, timeout=300)
    return out


PRELUDE = """
    import re, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    jax.config.update("jax_enable_x64", True)

    def rms_norm(x, target="rms_norm", eps=1e-5, method="broadcast_all"):
        call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method=method)
        return call(x, eps=np.float32(eps))

    def want(x, eps=1e-5):
        return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + eps)

    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    same = lambda got, expected: np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-6, atol=1e-6)
"""

CALLS = PRELUDE + """
    same(rms_norm(x), want(x))
    same(jax.jit(rms_norm)(x), want(x))
    same(jax.jit(lambda v: rms_norm(v * 2, eps=0.5) + 1)(x), want(x * 2, 0.5) + 1)
    for method in ("broadcast_all", "sequential", "expand_dims"):
        same(jax.jit(jax.vmap(lambda v: rms_norm(v, method=method)))(x), want(x))
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    rows = NamedSharding(mesh, P("x"))
    placed = jax.device_put(x, rows)
    divided = jax.jit(jax.shard_map(rms_norm, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(placed)
    same(divided, want(x))
    assert [s.data.shape for s in divided.addressable_shards] == [(2, 6)] * 4
    same(jax.jit(rms_norm, out_shardings=rows)(placed), want(x))
    normed_sum = jax.shard_map(lambda v: jax.lax.psum(rms_norm(v).sum(0), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    same(jax.jit(normed_sum)(placed), want(x).sum(0))

    # A batch that is divided stays so where the call says that it is one (jax.ffi.ffi_call cannot).
    from jax._src import core, dispatch
    from jax.interpreters import mlir
    batched = core.Primitive("batched_rms_norm")
    dispatch.simple_impl(batched)
    batched.def_abstract_eval(lambda x: x)

    def lowering(ctx, x):
        attributes = {"mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": "1"})}
        return jax.ffi.ffi_lowering("rms_norm", extra_attributes=attributes)(ctx, x, eps=np.float32(1e-5))

    mlir.register_lowering(batched, lowering)
    for f, out, expected in ((batched.bind, rows, want(x)), (lambda v: batched.bind(v * 2) + 1, rows, want(x * 2) + 1),
                             (batched.bind, None, want(x))):
        program = jax.jit(f, out_shardings=out)
        same(program(placed), expected)
        text = program.lower(placed).compile().as_text()
        assert re.search(r"= f32\\[2,6\\]\\S* custom-call\\(", text) and (out is None or "all-" not in text), text

    def attributes(v, fail=False):
        return jax.ffi.ffi_call("my_attributes", jax.ShapeDtypeStruct(v.shape, v.dtype))(
            v, a=np.int64(3), list=np.array([0.5, 0.25]), text="said so", fail=fail)

    v = np.arange(5.0)
    same(jax.jit(attributes)(v), 3 * v + 0.75)
    try:
        jax.block_until_ready(jax.jit(lambda v: attributes(v, fail=True))(v))
        raise SystemExit("no error")
    except jax.errors.JaxRuntimeError as error:
        assert "said so" in str(error) and "INVALID_ARGUMENT" in str(error), error
    same(jax.jit(attributes)(v + 1), 3 * v + 3.75)
    print("all right")
"""


def test_listed_and_by_name(library):
    with fresh_cluster(f"--ffi_library={library}:rms_norm=RmsNorm,{library}") as made:
        assert "all right" in made.script(CALLS).stdout
        # A function below the library is no handler, and what is none anywhere is named.
        done = made.script(PRELUDE + """
    for name in ("system", "no_such_target"):
        try:
            jax.block_until_ready(rms_norm(x, target=name))
            raise SystemExit("no error")
        except jax.errors.JaxRuntimeError as error:
            print(error)
    same(rms_norm(x), want(x))
        """)
        for name in ("system", "no_such_target"):
            assert f"UNIMPLEMENTED: compiling the program: the program calls the custom-call target '{name}'" in done.stdout
        assert "--ffi_library" in done.stdout and not any(word in done.stdout for word in FORBIDDEN)


def test_over_several_workers(library):
    with fresh_cluster(f"--ffi_library={library}:rms_norm=RmsNorm,{library}", slices=1, workers=2, devices=2) as made:
        assert "all right" in made.script(CALLS).stdout


def test_missing_on_one_side(library):
    """The proxy knows the name, the workers do not: the program is refused by name, nothing dies."""
    with fresh_cluster(f"--proxy-arg=--ffi_library={library}:rms_norm=RmsNorm", slices=1) as made:
        done = made.script(PRELUDE + """
    try:
        jax.block_until_ready(jax.jit(rms_norm)(x))
        raise SystemExit("no error")
    except jax.errors.JaxRuntimeError as error:
        print(error)
    assert float(jax.jit(lambda v: v + 1)(1.0)) == 2.0
        """)
        assert "UNIMPLEMENTED" in done.stdout and "'rms_norm'" in done.stdout
        assert not any(word in done.stdout for word in FORBIDDEN)
        pids = made.pids()
        made.refresh()
        assert made.pids() == pids


@pytest.mark.parametrize("flag, text", [
    ("/no/such.so", "/no/such.so"),
    ("{library}:rms_norm=Missing", "exports no function 'Missing'"),
    ("{library}:a=RmsNorm,{library}:a=RmsNorm", "'a' is named twice"),
    ("{source}", "ffi_example.cc"),
])
def test_mistakes_show_at_start(library, flag, text, tmp_path):
    done = subprocess.run([LANDBRIDGE, "run", "--slices", "1", "--ffi_library=" + flag.format(library=library, source=SOURCE),
                           "--", sys.executable, "-c", "print('ran')"], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "ran" not in done.stdout
    assert text in done.stderr, done.stderr
