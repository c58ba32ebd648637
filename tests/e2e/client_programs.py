"""Basic programs with their values, for clients of any supported JAX and servers with any plugin; only JAX is needed.

    python client_programs.py [--stock] [--unknown] [NAME...]

--stock: without the landbridge package, as pathwaysutils registers the backend. --unknown: with functions of JAX's
that the package's patches do not know. Prints one JSON object: the programs that passed, those that failed with their
errors, the patches and the warnings.
"""
import argparse
import functools
import json
import os
import sys
import traceback
import warnings

import numpy as np

PROGRAMS = {}
NEEDS_PATCH = {}    # program: the patch without which stock JAX does not do it


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def needs_patch(patch):
    def add(function):
        NEEDS_PATCH[function.__name__] = patch
        return program(function)
    return add


def equal(a, b):
    np.testing.assert_array_equal(np.asarray(a), b)


def close(a, b, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=atol)


def rand(*shape):
    return np.random.RandomState(len(shape) + sum(shape)).randn(*shape).astype(np.float32)


def modules():
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    return jax, jnp, Mesh, NamedSharding, P


def mesh_of(count):
    jax, _, Mesh, _, _ = modules()
    return Mesh(np.array(jax.devices()[:count]), ("d",))


@program
def devices():
    jax, *_ = modules()
    found = jax.devices()
    assert len(found) == 8 and len({d.id for d in found}) == 8
    assert all(d.platform == "cpu" for d in found), found
    assert found[0].client.runtime_type.startswith("proxy/landbridge")


@program
def jit_scalar():
    jax, *_ = modules()
    assert float(jax.jit(lambda v: v * 2 + 1)(20.0)) == 41


@program
def eager():
    _, jnp, *_ = modules()
    equal(jnp.arange(6).reshape(2, 3)[:, ::-1] + 1, np.arange(6).reshape(2, 3)[:, ::-1] + 1)


@program
def matmul():
    jax, *_ = modules()
    a, b = rand(17, 33), rand(33, 9)
    close(jax.jit(lambda x, y: x @ y)(a, b), a @ b, rtol=1e-4, atol=1e-4)


@program
def gradient_of_an_mlp():
    jax, jnp, *_ = modules()
    w, x = rand(4, 3), rand(5, 4)
    t = np.tanh(x @ w)
    g = jax.jit(jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p) ** 2)))(w)
    close(g, x.T @ (2 * t * (1 - t * t)), rtol=1e-4, atol=1e-4)


@program
def vmap():
    jax, jnp, *_ = modules()
    a, b = rand(6, 5), rand(6, 5)
    close(jax.jit(jax.vmap(jnp.dot))(a, b), np.sum(a * b, axis=1), rtol=1e-4, atol=1e-5)


@program
def scan():
    jax, jnp, *_ = modules()
    carry, ys = jax.jit(lambda v: jax.lax.scan(lambda c, a: (c + a, c * a), jnp.float32(0), v))(
        np.arange(6, dtype=np.float32))
    assert float(carry) == 15
    equal(ys, [0, 0, 2, 9, 24, 50])


@program
def while_loop():
    jax, *_ = modules()
    assert int(jax.jit(lambda n: jax.lax.while_loop(lambda s: s < n, lambda s: s * 2, 1))(1000)) == 1024


@program
def cond_and_switch():
    jax, *_ = modules()
    f = jax.jit(lambda p, v: jax.lax.cond(p, lambda a: a + 1, lambda a: a - 1, v))
    assert float(f(True, 1.0)) == 2 and float(f(False, 1.0)) == 0
    g = jax.jit(lambda i, v: jax.lax.switch(i, [lambda a: a, lambda a: a * 10, lambda a: -a], v))
    assert [float(g(i, 3.0)) for i in range(3)] == [3, 30, -3]


@program
def sort_and_search():
    _, jnp, *_ = modules()
    a = rand(101)
    equal(jnp.sort(a), np.sort(a))
    equal(jnp.argsort(a), np.argsort(a, kind="stable"))
    equal(jnp.searchsorted(jnp.sort(a), a), np.searchsorted(np.sort(a), a))


@program
def cumulative_sums():
    jax, jnp, *_ = modules()
    equal(jnp.cumsum(jnp.arange(50)), np.cumsum(np.arange(50)))
    equal(jax.jit(lambda v: jax.lax.associative_scan(jnp.maximum, v))(np.array([1, 3, 2, 5, 4])), [1, 3, 3, 5, 5])


@program
def random_numbers():
    """Threefry's bits are the same on every backend and in every version."""
    jax, jnp, *_ = modules()
    equal(jax.random.bits(jax.random.key(0), (4,), "uint32"), [4070199207, 4202968722, 1427181096, 2012915765])
    a = np.asarray(jax.random.normal(jax.random.key(3), (2000,)))
    assert abs(a.mean()) < 0.1 and 0.9 < a.std() < 1.1
    one, two = jax.random.split(jax.random.key(7))
    assert not np.array_equal(jax.random.key_data(one), jax.random.key_data(two))


@program
def fft():
    _, jnp, *_ = modules()
    a = rand(128)
    close(jnp.fft.fft(a), np.fft.fft(a), rtol=1e-3, atol=1e-3)
    close(jnp.fft.irfft(jnp.fft.rfft(a)), a, rtol=1e-3, atol=1e-4)


@program
def convolution():
    jax, *_ = modules()
    x, k = rand(1, 1, 8, 8), rand(1, 1, 3, 3)
    y = np.asarray(jax.jit(lambda a, b: jax.lax.conv(a, b, (1, 1), "VALID"))(x, k))
    expected = [[np.sum(x[0, 0, i:i + 3, j:j + 3] * k[0, 0]) for j in range(6)] for i in range(6)]
    close(y[0, 0], expected, rtol=1e-4, atol=1e-4)


@program
def integers_wrap_around():
    jax, jnp, *_ = modules()
    equal(jax.jit(lambda v: v + 100)(np.array([100, 27, -128], np.int8)),
          np.array([100, 27, -128], np.int8) + np.array(100, np.int8))
    equal(jnp.bitwise_xor(np.uint32(0xFFFF0000), np.uint32(0x0F0F0F0F)), np.uint32(0xF0F00F0F))
    equal(jax.lax.population_count(np.array([0, 255, 7], np.uint8)), [0, 8, 3])


@program
def small_floats():
    jax, jnp, *_ = modules()
    x = np.array([0.5, -1.5, 3.0, 448.0], np.float32)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn):
        y = jax.device_put(x.astype(dtype))
        assert y.dtype == dtype
        equal(jax.jit(lambda v: v.astype(jnp.float32) * 2)(y), x * 2)


@program
def four_bits():
    jax, jnp, *_ = modules()
    x = np.array([[-8, 7, 0], [1, -1, 3]]).astype(jnp.int4)
    y = jax.device_put(x)
    equal(np.asarray(y).astype(np.int32), x.astype(np.int32))
    equal(jax.jit(lambda v: v.T.astype(jnp.int32) * 3)(y), x.T.astype(np.int32) * 3)


@program
def complex_numbers():
    _, jnp, *_ = modules()
    z = rand(10) + 1j * rand(10)[::-1]
    close(jnp.conj(z) * z, np.abs(z) ** 2, rtol=1e-4, atol=1e-5)


@program
def sixty_four_bits():
    jax, jnp, *_ = modules()
    if not hasattr(jax, "enable_x64"):
        from jax.experimental import enable_x64
    else:
        enable_x64 = jax.enable_x64
    with enable_x64(True):
        x = np.array([1 << 40, -(1 << 50)], np.int64)
        y = jax.jit(lambda v: v + 1)(x)
        assert y.dtype == np.int64
        equal(y, x + 1)
        assert float(jax.jit(lambda v: v / 3)(np.float64(1))) == 1 / 3


@program
def booleans_and_where():
    _, jnp, *_ = modules()
    a = rand(20)
    equal(jnp.where(a > 0, a, 0), np.where(a > 0, a, 0))
    assert bool(jnp.any(a > 0)) and not bool(jnp.all(a > 0))


@program
def gather_and_scatter():
    _, jnp, *_ = modules()
    equal(jnp.zeros(6, jnp.int32).at[np.array([1, 1, 4])].add(np.array([2, 3, 7])), [0, 5, 0, 0, 7, 0])
    equal(jnp.arange(10)[np.array([9, 0, 3])], [9, 0, 3])


@program
def dynamic_slices():
    jax, *_ = modules()
    f = jax.jit(lambda v, i: jax.lax.dynamic_update_slice(v, jax.lax.dynamic_slice(v, (i,), (2,)) * 10, (0,)))
    equal(f(np.arange(8), 5), [50, 60, 2, 3, 4, 5, 6, 7])


@program
def nothing_and_everything_empty():
    jax, jnp, *_ = modules()
    y = jax.device_put(np.zeros((3, 0, 2), np.float32))
    assert np.asarray(y).shape == (3, 0, 2)
    assert float(jnp.sum(y)) == 0
    assert jax.jit(lambda v: None)(1.0) is None


@program
def remat_and_custom_derivatives():
    jax, jnp, *_ = modules()
    close(jax.jit(jax.grad(jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))))(0.7), np.cos(np.sin(0.7)) * np.cos(0.7))

    @jax.custom_vjp
    def f(v):
        return v * v
    f.defvjp(lambda v: (f(v), v), lambda v, g: (100 * g * v,))
    assert float(jax.jit(jax.grad(f))(3.0)) == 300


@program
def donated_training_loop():
    jax, jnp, *_ = modules()
    x = rand(32, 4)
    y = x @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)

    def step(w):
        loss, g = jax.value_and_grad(lambda p: jnp.mean((x @ p - y) ** 2))(w)
        return w - 0.2 * g, loss
    step = jax.jit(step, donate_argnums=0)
    w, first = jnp.zeros(4), None
    for _ in range(60):
        last = w
        w, loss = step(w)
        first = float(loss) if first is None else first
    assert last.is_deleted() and float(loss) < 1e-2 * first
    close(w, [1, -2, 3, 0.5], atol=0.2)


@program
def between_devices():
    """The first four are one slice, the others another."""
    jax, *_ = modules()
    x = rand(50, 7)
    y = jax.device_put(x, jax.devices()[0])
    for d in (3, 7, 4, 1):
        y = jax.device_put(y, jax.devices()[d]) + 1
        assert y.devices() == {jax.devices()[d]}
    close(y, x + 4)


@program
def pytrees():
    jax, *_ = modules()
    tree = {"a": [rand(3), rand(2, 2)], "b": (np.int32(5), rand(1))}
    back = jax.device_get(jax.tree.map(lambda v: v * 2, jax.device_put(tree, jax.devices()[2])))
    jax.tree.map(lambda got, x: equal(got, np.asarray(x) * 2), back, tree)


@program
def sharded_program():
    jax, jnp, _, NamedSharding, P = modules()
    mesh = mesh_of(4)
    x, w = rand(16, 8), rand(8, 12)
    a = jax.device_put(x, NamedSharding(mesh, P("d")))
    b = jax.device_put(w, NamedSharding(mesh, P(None, "d")))
    y = jax.jit(lambda p, q: p @ q, out_shardings=NamedSharding(mesh, P("d")))(a, b)
    assert [s.data.shape for s in y.addressable_shards] == [(4, 12)] * 4
    close(y, x @ w, rtol=1e-4, atol=1e-4)
    close(jax.jit(jnp.sum)(y), np.sum(x @ w), rtol=1e-3, atol=1e-3)


@program
def over_two_slices():
    jax, jnp, _, NamedSharding, P = modules()
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    a = jax.device_put(x, NamedSharding(mesh_of(8), P("d")))
    assert float(jax.jit(lambda v: jnp.sum(v * v))(a)) == float(np.sum(x * x))


@program
def shard_map_collectives():
    jax, jnp, _, _, P = modules()
    mesh = mesh_of(4)
    x = np.arange(8, dtype=np.float32)

    def f(v):
        total = jax.lax.psum(v, "d")
        right = jax.lax.ppermute(v, "d", [(i, (i + 1) % 4) for i in range(4)])
        return total + 0 * v, right, jax.lax.all_gather(v, "d", tiled=True).sum() + 0 * v
    total, right, everything = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(x)
    equal(total, np.tile(x.reshape(4, 2).sum(0), 4))
    equal(right, np.roll(x, 2))
    equal(everything, np.full(8, x.sum()))


@program
def other_partitionings():
    jax, _, _, NamedSharding, P = modules()
    x = rand(8, 8)
    y = jax.device_put(x, NamedSharding(mesh_of(4), P("d")))
    for target in (NamedSharding(mesh_of(4), P(None, "d")), NamedSharding(mesh_of(4), P()),
                   NamedSharding(mesh_of(2), P("d")), jax.devices()[5]):
        y = jax.device_put(y, target)
        equal(y, x)


@program
def constants_in_programs():
    jax, jnp, *_ = modules()
    big = rand(300_000)
    close(jax.jit(lambda: jnp.sum(jnp.abs(big)))(), np.abs(big).sum(), rtol=1e-3)


@program
def large_arrays():
    jax, *_ = modules()
    x = rand(3_000_001)
    y = jax.device_put(x)
    y.copy_to_host_async()
    equal(y, x)
    equal(jax.jit(lambda v: v + 1)(y), x + 1)


@program
def strides_of_numpy():
    jax, *_ = modules()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (x.T, x[:, ::2], x[..., 1:3]):
        equal(jax.device_put(view), view)


@needs_patch("strides")
def strides_that_are_not_positive():
    jax, *_ = modules()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (x[::-1], x[..., ::-2], np.broadcast_to(x[0, 0], (5, 4))):
        equal(jax.device_put(view), view)


@needs_patch("locations")
def programs_without_lines():
    jax, jnp, *_ = modules()
    text = jax.jit(lambda v: jnp.sin(v) * 2).lower(jnp.ones(3)).as_text(debug_info=True)
    assert "jit(<lambda>)/sin" in text and ".py" not in text, text


@needs_patch("device_put")
def partitionings_stay_on_the_cluster():
    """The values of other_partitionings, without the client's host memory."""
    jax, _, _, NamedSharding, P = modules()
    from jax._src import array
    stock, array.ArrayImpl._value = array.ArrayImpl._value, property(lambda x: 1 / 0)
    try:
        y = jax.device_put(rand(8, 8), NamedSharding(mesh_of(4), P("d")))
        z = jax.device_put(y, NamedSharding(mesh_of(4), P(None, "d")))
    finally:
        array.ArrayImpl._value = stock
    equal(z, rand(8, 8))


@program
def many_calls_in_a_row():
    jax, *_ = modules()
    f = jax.jit(lambda v: v + 1)
    x = f(0.0)
    for _ in range(300):
        x = f(x)
    assert float(x) == 301


@program
def ahead_of_time():
    jax, jnp, *_ = modules()
    compiled = jax.jit(lambda a, b: a @ b).lower(jnp.ones((8, 8)), jnp.ones((8, 8))).compile()
    stats = compiled.memory_analysis()
    assert stats.argument_size_in_bytes == 512 and stats.output_size_in_bytes == 256
    equal(compiled(jnp.ones((8, 8)), jnp.ones((8, 8))), np.full((8, 8), 8))


@needs_patch("memory_stats")
def memory_of_a_device():
    jax, jnp, *_ = modules()
    before = jax.devices()[0].memory_stats()["bytes_in_use"]
    x = jax.device_put(np.zeros(1 << 20, np.uint8), jax.devices()[0]).block_until_ready()
    assert jax.devices()[0].memory_stats()["bytes_in_use"] - before == 1 << 20
    del x


@needs_patch("program_text")
def text_and_costs_of_a_program():
    jax, jnp, *_ = modules()
    compiled = jax.jit(lambda a, b: a @ b).lower(jnp.ones((8, 8)), jnp.ones((8, 8))).compile()
    assert compiled.as_text().startswith("HloModule jit_")
    assert compiled.cost_analysis()["flops"] == 2 * 8 ** 3


@needs_patch("serialization")
def programs_that_are_kept():
    jax, jnp, *_ = modules()
    from jax.experimental import serialize_executable
    mesh = mesh_of(4)
    from jax.sharding import NamedSharding, PartitionSpec as P
    x = jax.device_put(rand(8, 8), NamedSharding(mesh, P("d")))
    compiled = jax.jit(lambda v: v * 2).lower(x).compile()
    again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    equal(again(x), rand(8, 8) * 2)
    assert again.runtime_executable().fingerprint == compiled.runtime_executable().fingerprint


@needs_patch("newer_programs")
def operations_newer_than_the_message():
    jax, *_ = modules()
    from jax._src.lax import parallel
    from jax.sharding import NamedSharding, PartitionSpec as P
    x = jax.device_put(rand(16, 4), NamedSharding(mesh_of(4), P("d")))
    start = lambda v: parallel.psum_scatter_start(v, "d", scatter_dimension=0, tiled=True).done()
    y = jax.jit(jax.shard_map(start, mesh=mesh_of(4), in_specs=P("d"), out_specs=P("d")))(x)
    np.testing.assert_allclose(np.asarray(y), rand(16, 4).reshape(4, 4, 4).sum(0), rtol=1e-6)


@needs_patch("partitioning")
def partitionings_in_words_and_by_functions():
    jax, jnp, *_ = modules()
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import NamedSharding, PartitionSpec as P
    x = jax.device_put(rand(8, 8), NamedSharding(mesh_of(4), P("d")))
    seen = []

    @custom_partitioning
    def tripled(v):
        return v * 3

    def partition(mesh, args, result):
        seen.append(args[0].sharding.spec)
        return mesh, lambda v: v + v + v, result.sharding, (args[0].sharding,)

    tripled.def_partition(partition, sharding_rule="i j -> i j")

    @jax.jit
    def f(v):
        jax.debug.inspect_array_sharding(v + 1, callback=lambda sharding: seen.append(sharding.spec))
        return tripled(v)

    np.testing.assert_allclose(np.asarray(f(x)), rand(8, 8) * 3, rtol=1e-6)
    assert [tuple(spec)[:1] for spec in seen] == [("d",), ("d",)], seen


@needs_patch("buffer_callback")
def callbacks_on_buffers():
    jax, jnp, *_ = modules()
    from jax.experimental.buffer_callback import buffer_callback

    def twice(context, out, a):
        np.asarray(out)[...] = np.asarray(a) * 2

    x = rand(8, 8)
    equal(jax.jit(lambda v: buffer_callback(twice, jax.ShapeDtypeStruct(v.shape, v.dtype))(v))(x), x * 2)


@needs_patch("deletion")
def ends_of_shared_buffers():
    jax, jnp, *_ = modules()
    x = jax.device_put(np.arange(4.0, dtype=np.float32), jax.devices()[0])
    view = jax.make_array_from_single_device_arrays(x.shape, x.sharding, [x])
    assert not view.is_deleted()
    jax.jit(lambda v: v * 2, donate_argnums=0)(x).block_until_ready()
    assert view.is_deleted()


@needs_patch("callbacks")
def callbacks_of_every_kind():
    jax, jnp, *_ = modules()
    from jax.experimental import io_callback
    from jax.sharding import NamedSharding, PartitionSpec as P
    seen = []
    x = jax.device_put(rand(8, 8), NamedSharding(mesh_of(4), P("d")))

    @functools.partial(jax.jit, out_shardings=x.sharding)  # the older plugin leaves the result on one device otherwise
    def f(v):
        jax.debug.callback(lambda a: seen.append(float(a)), v[0, 0])
        io_callback(lambda a: seen.append(float(a)), None, v[0, 1], ordered=False)
        return jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct(v.shape, v.dtype), v)

    equal(f(x), rand(8, 8) * 2)
    jax.effects_barrier()
    assert sorted(seen) == sorted([float(rand(8, 8)[0, 0]), float(rand(8, 8)[0, 1])])

    @jax.jit
    def ordered(v):
        for i in range(3):
            io_callback(lambda a: seen.append(int(a)), None, v + i, ordered=True)
        return v

    seen.clear()
    ordered(jax.device_put(np.int32(1), jax.devices()[1]))
    jax.effects_barrier()
    assert seen == [1, 2, 3]


@program
def users_errors():
    jax, jnp, *_ = modules()
    x = jnp.ones(3)
    x.delete()
    try:
        np.asarray(x)
    except RuntimeError as error:
        assert "deleted" in str(error)
    else:
        raise AssertionError("a deleted array was read")
    try:
        jax.jit(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((4, 5)))
    except TypeError as error:
        assert "contracting" in str(error)
    else:
        raise AssertionError("shapes that do not fit were multiplied")
    assert float(jnp.sum(jnp.ones(4))) == 4  # the client lives on


def register_stock_backend():
    """What pathwaysutils.initialize() does."""
    os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
    from jax.extend import backend
    from jax.extend.backend import ifrt_proxy
    backend.register_backend_factory(
        "proxy", lambda: ifrt_proxy.get_client(os.environ["JAX_BACKEND_TARGET"], ifrt_proxy.ClientConnectionOptions()),
        priority=-1)


def hide_signatures():
    """As in a later JAX, whose functions take other arguments."""
    from jax._src.interpreters import mlir, pxla

    def hidden(stock):
        return lambda *everything, **more: stock(*everything, **more)
    pxla.batched_device_put = hidden(pxla.batched_device_put)
    mlir.source_info_to_location = hidden(mlir.source_info_to_location)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    report = {"passed": [], "failed": {}, "patches": {}}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import jax
        if args.stock:
            register_stock_backend()    # before an installed package could, which then leaves it alone
        if args.unknown:
            hide_signatures()
        jax.devices()
    report["jax"] = jax.__version__
    report["warnings"] = [str(w.message) for w in seen]
    if not args.stock or "landbridge" in sys.modules:
        from landbridge import patches
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report["patches"] = patches.install_all()   # what was done is done: this tells
    for name, function in PROGRAMS.items():
        if args.names and name not in args.names:
            continue
        if name in NEEDS_PATCH and report["patches"].get(NEEDS_PATCH[name]) != "installed":
            continue
        try:
            function()
            report["passed"].append(name)
        except Exception:
            report["failed"][name] = traceback.format_exc()[-3000:]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
