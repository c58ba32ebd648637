"""Python callbacks in programs on the cluster: the same values as on plain JAX, and what happens when they go wrong."""

import json
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from test_questions import STOCK

# What a program can see of callbacks, as JSON: runs on plain JAX with eight CPU devices and on the cluster.
PROGRAM = """
    import functools, json
    import jax, jax.numpy as jnp, numpy as np
    from jax.experimental import checkify, io_callback
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    D = jax.devices()
    seen = {}

    def look(x):
        if isinstance(x, (list, tuple)):
            return [look(v) for v in x]
        x = np.asarray(x)
        return [str(x.dtype), list(x.shape), x.astype(np.complex128).ravel().view(np.float64).tolist()]

    def note(name, fn):
        seen[name] = look(fn())

    def call(f, x, *more, **options):
        return jax.pure_callback(f, jax.ShapeDtypeStruct(x.shape, x.dtype), x, *more, **options)

    x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)

    note("pure", lambda: jax.jit(lambda v: call(lambda a: np.sin(a) * 2, v) + 1)(x))
    note("several results", lambda: jax.jit(lambda v: jax.pure_callback(
        lambda a, b: (a + b, np.int32(7), a[:1]),
        (jax.ShapeDtypeStruct((3, 4), np.float32), jax.ShapeDtypeStruct((), np.int32),
         jax.ShapeDtypeStruct((1, 4), np.float32)), v, v * 3))(x))
    note("no operands", lambda: jax.jit(lambda: jax.pure_callback(
        lambda: np.arange(5, dtype=np.int32), jax.ShapeDtypeStruct((5,), np.int32)))())
    note("empty", lambda: jax.jit(lambda v: call(lambda a: a, v))(jnp.zeros((0, 3))))
    for dtype in ("bool", "int8", "uint16", "int32", "bfloat16", "float16", "complex64", "float8_e4m3fn"):
        v = (np.arange(6) % 2).astype(jnp.dtype(dtype))
        note(f"dtype {dtype}", lambda: jax.jit(lambda a: call(lambda b: b, a))(v))
    for dtype in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn"):  # several to a byte, also a byte in part
        v = (np.arange(7) % 4 - 2 * (dtype[0] == "i")).astype(np.float32).astype(jnp.dtype(dtype))
        def turned(*args):
            assert all(a.dtype == v.dtype for a in args)
            return tuple(np.asarray(a)[::-1] for a in args)
        shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (v, v[:4]))
        note(f"dtype {dtype}", lambda: list(jax.jit(lambda a, b: jax.pure_callback(turned, shapes, a, b))(v, v[:4])))
    note("transposed", lambda: jax.jit(lambda v: call(lambda a: np.cumsum(a, axis=1), v.T))(x))
    note("large", lambda: jax.jit(lambda v: call(lambda a: a[::-1] + 1, v).sum())(jnp.arange(1 << 18, dtype=jnp.int32)))
    note("chained", lambda: jax.jit(lambda v: call(lambda a: a * 2, call(lambda a: a + 1, v)))(x))
    note("scan", lambda: jax.jit(lambda v: jax.lax.scan(
        lambda c, e: (call(lambda a, b: a + b, c, e), c), jnp.zeros(4), v))(x))
    note("while", lambda: jax.jit(lambda v: jax.lax.while_loop(
        lambda c: c < 100, lambda c: call(lambda a: a * 2, c), v))(jnp.float32(3)))
    note("cond", lambda: [jax.jit(lambda p, v: jax.lax.cond(
        p, lambda a: call(lambda b: b + 1, a), lambda a: call(lambda b: b - 1, a), v))(p, x) for p in (True, False)])
    note("vmap sequential", lambda: jax.jit(jax.vmap(
        lambda v: call(lambda a: a.sum(keepdims=True).astype(np.float32) * np.ones_like(a), v,
                       vmap_method="sequential")))(x))
    note("vmap broadcast", lambda: jax.jit(jax.vmap(lambda v: call(lambda a: a * 10, v, vmap_method="broadcast_all")))(x))

    @jax.custom_jvp
    def f(v):
        return call(np.sin, v)
    f.defjvp(lambda p, t: (f(*p), call(np.cos, p[0]) * t[0]))
    note("grad", lambda: jax.jit(jax.grad(lambda v: f(v).sum()))(x))

    def uses_jax(a):
        assert list(a.devices())[0].client.runtime_type != "proxy/landbridge"
        return jax.jit(jnp.cumsum)(a) + jnp.ones(3)
    note("jax inside", lambda: jax.jit(lambda v: call(uses_jax, v))(jnp.arange(3.0)))

    sharded = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(Mesh(np.array(D[:4]), "d"), P("d")))
    note("sharded", lambda: jax.jit(lambda v: call(lambda a: np.cumsum(a), v * 2) + v)(sharded))
    mesh = Mesh(np.array(D[:4]), "d")
    note("shard_map", lambda: jax.jit(jax.shard_map(
        lambda v: call(lambda a: a * 0 + a.sum(), v), mesh=mesh, in_specs=P("d"), out_specs=P("d")))(sharded))
    wide = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(Mesh(np.array(D), "d"), P("d")))
    note("over all", lambda: jax.jit(lambda v: call(lambda a: np.cumsum(a), v * 2) + v)(wide))
    note("shard_map over all", lambda: jax.jit(jax.shard_map(
        lambda v: call(lambda a: a * 0 + a.sum(), v), mesh=Mesh(np.array(D), "d"), in_specs=P("d"), out_specs=P("d")))(wide))

    # On buffers.
    from jax.experimental.buffer_callback import ExecutionStage, buffer_callback
    def buffer(f, v, **options):
        return buffer_callback(f, jax.ShapeDtypeStruct(v.shape, v.dtype), **options)
    def twice(context, out, a):
        assert context.stage == ExecutionStage.EXECUTE and out.writeable and not a.writeable
        assert (a.shape, a.dtype, a.ndim) == (out.shape, out.dtype, out.ndim)
        np.asarray(out)[...] = np.asarray(a) + np.asarray(a)
    for dtype in ("bool", "int8", "int32", "bfloat16", "complex64"):
        v = (np.arange(6) % 2).astype(jnp.dtype(dtype))
        note(f"buffer {dtype}", lambda: jax.jit(lambda a: buffer(twice, a)(a))(v))
    def aliased(_, out, a):
        assert np.asarray(out).ctypes.data == np.asarray(a).ctypes.data
        np.asarray(out)[0] += 100
    note("buffer aliased", lambda: jax.jit(lambda a: buffer(aliased, a, input_output_aliases={0: 0})(a) + a)(x))
    def dlpack(_, outs, args):
        np.asarray(outs["sum"])[...] = np.from_dlpack(args[0]) + np.from_dlpack(args[1]["b"])
        np.asarray(outs["n"])[...] = 7
    note("buffer pytree", lambda: list(jax.jit(lambda a: buffer_callback(
        dlpack, {"sum": jax.ShapeDtypeStruct((3, 4), np.float32), "n": jax.ShapeDtypeStruct((), np.int32)})(
            (a, {"b": a * 2})))(x).values()))
    note("buffer vmap", lambda: jax.jit(jax.vmap(lambda v: buffer(twice, v, vmap_method="sequential")(v)))(x))
    note("buffer sharded", lambda: jax.jit(lambda v: buffer(twice, v)(v * 2) + v)(sharded))
    note("buffer shard_map over all", lambda: jax.jit(jax.shard_map(
        lambda v: buffer(twice, v)(v), mesh=Mesh(np.array(D), "d"), in_specs=P("d"), out_specs=P("d")))(wide))
    touched = []
    jax.block_until_ready(buffer_callback(lambda *_: touched.append(1), jax.ShapeDtypeStruct((), np.float32),
                                          has_side_effect=True)())
    seen["buffer effect"] = touched
    for name, f in (("buffer returns", lambda *_: 3), ("buffer raises", lambda *_: 1 / 0)):
        try:
            jax.block_until_ready(buffer(f, x)(x))
            seen[name] = "nothing"
        except jax.errors.JaxRuntimeError as error:
            seen[name] = [word in str(error) for word in ("must not return any values", "ZeroDivisionError")]
    try:
        jax.block_until_ready(buffer(lambda context, *_: context.stream, x)(x))
    except jax.errors.JaxRuntimeError as error:
        seen["buffer stream"] = "GPU context is not available" in str(error)

    # Effects.
    log = []
    def remember(a):
        log.append(np.asarray(a).tolist())
        return np.float32(len(log))
    shape = jax.ShapeDtypeStruct((), np.float32)

    @jax.jit
    def ordered(v):
        def body(c, e):
            return c + io_callback(remember, shape, e, ordered=True), None
        return jax.lax.scan(body, 0.0, v)[0]
    note("ordered", lambda: [ordered(jnp.arange(5.0)), ordered(jnp.arange(3.0))])
    jax.effects_barrier()
    seen["ordered log"] = log[:]
    log.clear()
    by_shard = {}
    def of_shard(shard, a):
        by_shard.setdefault(int(np.asarray(shard).item()), []).append(np.asarray(a).tolist())
    def two_steps(ids, v):
        io_callback(of_shard, None, ids, v, ordered=True)
        io_callback(of_shard, None, ids, v + 1, ordered=True)
    for _ in range(2):      # the second takes the tokens of all devices that the first gave
        jax.jit(jax.shard_map(two_steps, mesh=mesh, in_specs=P("d"), out_specs=None))(jnp.arange(4), jnp.arange(8))
    jax.effects_barrier()
    seen["ordered by shard"] = sorted(by_shard.items())
    log.clear()
    note("unordered", lambda: jax.jit(lambda v: io_callback(remember, shape, v))(jnp.float32(4)))
    jax.effects_barrier()
    seen["unordered log"] = log[:]
    log.clear()
    for i in range(5):
        jax.jit(lambda v: jax.debug.callback(remember, v))(jnp.float32(i))
    jax.effects_barrier()
    seen["debug log"] = sorted(log)
    log.clear()
    jax.jit(lambda v: jax.debug.callback(remember, v.sum()))(sharded)
    jax.effects_barrier()
    seen["debug of sharded"] = log[:]

    # Each device with what it has.
    parts = []
    def of_part(*args):
        assert all(np.asarray(a).dtype == np.float32 for a in args)
        parts.append([np.asarray(a).tolist() for a in args])
    def in_parts(*args):
        jax.debug.callback(of_part, *args, partitioned=True)
        return args[0] + 1
    def parts_of(name, f, *args):
        jax.jit(f)(*args)
        jax.effects_barrier()
        seen["parts of " + name] = sorted(parts)
        parts.clear()
    both = Mesh(np.array(D).reshape(4, 2), ("a", "b"))
    matrix = np.arange(32, dtype=np.float32).reshape(8, 4)
    put = lambda spec, m=both: jax.device_put(matrix, NamedSharding(m, spec))
    parts_of("one device", in_parts, x)
    parts_of("rows", in_parts, sharded)
    parts_of("rows over all", in_parts, wide)
    parts_of("two axes", in_parts, put(P("a", "b")))
    parts_of("several", in_parts, put(P("a")), put(P(None, "b")), put(P()), put(P(("b", "a"))))
    parts_of("what is computed", lambda v: in_parts(v * 2, v.sum()), put(P("a", "b")))
    parts_of("vmap", jax.vmap(in_parts, in_axes=(0, 1)), put(P("a", "b"))[:4], put(P(None, "b")))
    parts_of("scan", lambda v: jax.lax.scan(lambda c, e: (in_parts(c), e), v, jnp.arange(2.0)), put(P("a", "b")))
    parts_of("shard_map", jax.shard_map(in_parts, mesh=both, in_specs=P("a", "b"), out_specs=P("a", "b")), put(P("a", "b")))

    jax.jit(lambda v: jax.debug.print("printed {v} {w}", v=v, w=v * 2, ordered=True))(jnp.arange(3))
    jax.jit(lambda v: jax.debug.print("in a loop {v}", v=v))(jnp.arange(2))
    jax.effects_barrier()

    # Checks.
    def checked(v):
        checkify.check(v > 0, "must be positive, is {v}", v=v)
        return jnp.log(v)
    error, _ = checkify.checkify(jax.jit(checked))(jnp.float32(-2))
    seen["checkify"] = error.get().split("(check failed")[0]
    error, value = checkify.checkify(jax.jit(checked))(jnp.float32(1))
    seen["checkify passes"] = [error.get(), look(value)]
    error, _ = checkify.checkify(jax.jit(lambda v: v[7]), errors=checkify.index_checks)(jnp.arange(3))
    seen["checkify index"] = "out-of-bounds" in error.get()
    with jax.debug_nans(True):
        try:
            jax.jit(lambda v: jnp.log(v) + 1)(jnp.float32(-1)).block_until_ready()
        except FloatingPointError as error:
            seen["debug_nans"] = str(error)[:30]

    # Failures.
    def failing(a):
        raise ValueError("the text of the exception")
    for name, run in {
        "pure": lambda: jax.jit(lambda v: call(failing, v))(x),
        "wrong shape": lambda: jax.jit(lambda v: call(lambda a: a[0], v))(x),
        "wrong dtype": lambda: jax.jit(lambda v: call(lambda a: a.astype(np.int32), v))(x),
        "wrong count": lambda: jax.jit(lambda v: call(lambda a: (a, a), v))(x),
        "checkify": lambda: jax.jit(checked)(jnp.float32(-2)),
    }.items():
        try:
            jax.block_until_ready(run())
            seen["error " + name] = "none"
        except Exception as error:
            text = str(error)
            seen["error " + name] = [w for w in ("the text of the exception", "ValueError", "Traceback", "failing",
                "Incorrect output shape", "Incorrect output dtype", "Mismatched", "positive") if w in text]
    try:
        jax.jit(lambda v: jax.debug.callback(failing, v))(x)
        jax.effects_barrier()
        seen["error debug"] = "none"
    except Exception as error:
        seen["error debug"] = "the text of the exception" in str(error)
    note("after errors", lambda: jax.jit(lambda v: call(lambda a: a + 1, v))(x))
    print(json.dumps(seen))
"""


def test_everything_is_as_on_plain_jax(cluster):
    mine = cluster.script(PROGRAM, timeout=400).stdout.splitlines()
    plain = cluster.script(PROGRAM, timeout=400, JAX_PLATFORMS="cpu", PJRT_NPROC="16",
                           XLA_FLAGS="--xla_force_host_platform_device_count=8").stdout.splitlines()
    assert mine[:-1] == plain[:-1]  # what was printed
    assert "printed [0 1 2] [0 2 4]" in mine
    mine, plain = json.loads(mine[-1]), json.loads(plain[-1])
    assert mine.keys() == plain.keys()
    for name, value in plain.items():
        assert mine[name] == value, name
    assert mine["error pure"] == ["the text of the exception", "ValueError", "Traceback", "failing"]
    assert mine["ordered log"] == [0, 1, 2, 3, 4, 0, 1, 2]


def call(f, x):
    return jax.pure_callback(f, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_failure_is_the_users_mistake(cluster):
    """Elastic code retries for ever on some words."""
    def failing(a):
        raise RuntimeError("INTERNAL: DATA_LOSS")

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda v: call(failing, v))(jnp.float32(1)).block_until_ready()
    text = str(caught.value)
    assert "RuntimeError" in text and "failing" in text
    assert not any(word in text for word in ("INTERNAL", "DATA_LOSS", "NOT_FOUND", "DEADLINE_EXCEEDED"))


def test_the_cluster_is_refused_in_a_callback(cluster):
    there = jax.device_put(np.float32(5), jax.devices()[0])
    compiled = jax.jit(lambda v: v + 1)
    compiled(there).block_until_ready()
    for use in (lambda a: np.asarray(there), lambda a: compiled(there), lambda a: there + a,
                lambda a: np.asarray(jax.device_put(np.float32(1), jax.devices()[1])), lambda a: float(there),
                lambda a: there.block_until_ready()):
        with pytest.raises(jax.errors.JaxRuntimeError, match="a callback cannot use arrays or devices of the cluster"):
            jax.jit(lambda v: call(use, v))(jnp.float32(1)).block_until_ready()
    assert float(compiled(there)) == 6


def test_a_slow_callback_holds_up_only_who_needs_it(cluster):
    devices = jax.devices()
    go, there = threading.Event(), threading.Event()

    def slow(a):
        there.set()
        assert go.wait(120)
        return a + 1

    x = jax.device_put(np.float32(1), devices[0])
    waiting = jax.jit(lambda v: call(slow, v))(x)
    assert there.wait(60)
    # Another device of the same worker, another worker, the same device's memory, other callbacks.
    for device in (devices[1], devices[4]):
        y = jax.device_put(np.float32(2), device)
        assert float(jax.jit(lambda v: v * 2)(y)) == 4
        assert float(jax.jit(lambda v: call(lambda a: a * 3, v))(y)) == 6
    assert float(x) == 1
    assert devices[0].memory_stats()["bytes_in_use"] > 0
    assert not waiting.is_ready()
    go.set()
    assert float(waiting) == 2


def host_calls(cluster):
    return cluster.status()["proxy"]["front_door"]["host_calls"]


def test_a_killed_client_frees_the_worker(cluster):
    code = """
    import jax, numpy as np, threading
    def hang(a):
        print("called", flush=True)
        threading.Event().wait()
    x = jax.device_put(np.float32(1), jax.devices()[5])
    jax.jit(lambda v: jax.pure_callback(hang, jax.ShapeDtypeStruct((), np.float32), v))(x).block_until_ready()
    """
    client = cluster.start(code)
    assert client.stdout.readline() == "called\n"
    assert host_calls(cluster)["open"] == 1
    client.send_signal(signal.SIGKILL)
    client.wait()
    y = jax.device_put(np.float32(2), jax.devices()[5])
    assert float(jax.jit(lambda v: v * 2)(y)) == 4  # runs behind it on the same device
    assert host_calls(cluster)["open"] == 0


def test_a_client_that_ends_while_a_callback_hangs(cluster):
    code = """
    import jax, numpy as np, threading
    there = threading.Event()
    def hang(a):
        there.set()
        threading.Event().wait()
    x = jax.device_put(np.float32(1), jax.devices()[6])
    y = jax.jit(lambda v: jax.pure_callback(hang, jax.ShapeDtypeStruct((), np.float32), v))(x)
    there.wait()
    print("done", flush=True)
    """
    assert cluster.script(code, timeout=120).stdout == "done\n"
    y = jax.device_put(np.float32(2), jax.devices()[6])
    assert float(jax.jit(lambda v: v * 2)(y)) == 4


def test_the_same_script_twice_is_compiled_once_and_calls_its_own_client(cluster):
    code = """
    import jax, numpy as np, os, sys
    def mine(a):
        return a + int(os.environ["NUMBER"])
    x = jax.device_put(np.float32(1), jax.devices()[2])
    print(float(jax.jit(lambda v: jax.pure_callback(mine, jax.ShapeDtypeStruct((), np.float32), v))(x)))
    """
    assert cluster.script(code, NUMBER="10").stdout == "11.0\n"
    before = cluster.status()["proxy"]["compile"]["compiles"]
    assert cluster.script(code, NUMBER="20").stdout == "21.0\n"
    assert cluster.status()["proxy"]["compile"]["compiles"] == before


def test_callbacks_go_when_their_programs_are_gone(cluster):
    code = """
    import gc, jax, numpy as np, threading, weakref
    from landbridge import callbacks
    class Big: pass
    def once(go):
        big = Big()
        def f(a, big=big):
            assert go.wait(100)
            return a + 1
        y = jax.jit(lambda v: jax.pure_callback(f, jax.ShapeDtypeStruct((), np.float32), v))(np.float32(1))
        return y, weakref.ref(big)
    go = threading.Event()
    y, big = once(go)
    jax.clear_caches(); gc.collect()
    # The program is dropped and its launch still runs.
    assert big() is not None and callbacks._current.functions() == 1
    gone = threading.Event()
    weakref.finalize(big(), gone.set)
    go.set()
    assert float(y) == 2
    assert gone.wait(100)
    while callbacks._current.functions(): pass
    print("gone")
    """
    assert cluster.script(code, timeout=150).stdout == "gone\n"


def test_without_the_package_the_clients_own_error_comes_at_once(cluster):
    code = """
    import jax, numpy as np
    try:
        jax.jit(lambda v: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((), np.float32), v))(np.float32(1))
    except Exception as error:
        print(type(error).__name__, str(error)[:200])
    """
    assert "UNIMPLEMENTED" in cluster.script(STOCK + code).stdout
    assert "UNIMPLEMENTED" in cluster.script(code, LANDBRIDGE_PATCHES="-callbacks").stdout


def test_a_stream_without_a_sessions_token_is_refused(cluster):
    import grpc
    with grpc.insecure_channel(cluster.address.partition("://")[2]) as channel:
        serve = channel.stream_stream("/landbridge.HostCalls/Serve")
        for metadata in ((), (("landbridge-host-calls-bin", b"x" * 32),)):
            with pytest.raises(grpc.RpcError) as caught:
                next(serve(iter(()), metadata=metadata))
            assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
