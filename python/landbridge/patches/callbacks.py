"""Python callbacks in programs: pure_callback, io_callback, debug.callback, debug.print, checkify.

The stock proxy client refuses them. Here the call is compiled as on plain JAX's CPU, except that it names the function by
a number that the server sends back to this process (landbridge/callbacks.py).

In a callback, JAX runs on this process's own CPU. Arrays and devices of the cluster are refused there at once: the
program that calls may be what they wait for.
"""
import dataclasses
import functools
import inspect

import numpy as np

from landbridge import callbacks, patches, questions

NAME = "callbacks"

_PARAMETERS = ["ctx", "callback", "token", "operands", "operand_avals", "result_avals", "has_side_effect", "returns_token",
               "partitioned", "sharding"]
_TARGET = "xla_ffi_python_cpu_callback"  # XLA's own name: its partitioner keeps such calls on one device
_TARGET_OF_PARTS = "xla_ffi_partitioned_python_cpu_callback"  # every device calls, with what it has of the operands
_ADVICE = ("a callback cannot use arrays or devices of the cluster: the program that calls it may be what they wait for. "
           "Pass what it needs as arguments; they arrive as arrays of this process's CPU")


def check():
    from jax._src import array, callback, ffi
    from jax._src.interpreters import mlir, pxla
    if reason := patches.unknown_release("Python callbacks are refused"):
        return reason
    found = list(inspect.signature(callback.emit_python_callback).parameters)
    if found != _PARAMETERS:
        return f"emit_python_callback takes {found}"
    for owner, name in ((ffi, "build_ffi_lowering_function"), (mlir, "set_sharding"), (mlir.ModuleContext, "add_keepalive"),
                        (pxla, "ExecuteReplicated"), (pxla, "batched_device_put"), (array.ArrayImpl, "_value"),
                        (array.ArrayImpl, "block_until_ready")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    found = list(inspect.signature(pxla.batched_device_put).parameters)
    if found[:4] != ["aval", "sharding", "xs", "devices"]:
        return f"batched_device_put takes {found}"
    try:
        import grpc  # noqa: F401
    except ImportError:
        return "the grpcio package is missing; callbacks need it (pip install grpcio)"
    return questions.check()


def spec(aval):
    from jax._src import core
    aval = core.physical_aval(aval)
    return tuple(aval.shape), np.dtype(aval.dtype)


def install():
    from jax._src import callback
    stock = callback.emit_python_callback

    @functools.wraps(stock)
    def emit_python_callback(ctx, callback, token, operands, operand_avals, result_avals, *, has_side_effect,
                             returns_token=True, partitioned=False, sharding=None):
        server = callbacks.server_of(ctx.module_context.backend) if len(ctx.module_context.platforms) == 1 else None
        if server is None:
            return stock(ctx, callback, token, operands, operand_avals, result_avals, has_side_effect=has_side_effect,
                         returns_token=returns_token, partitioned=partitioned, sharding=sharding)
        if partitioned and result_avals:
            raise ValueError("Partitioned callback not supported with return values.")
        return _emit(server, ctx, callback, token, operands, operand_avals, result_avals, has_side_effect,
                     partitioned, sharding)

    callback.emit_python_callback = emit_python_callback
    from jax._src.interpreters import mlir
    if getattr(mlir, "emit_python_callback", None) is stock:  # where it lived before
        mlir.emit_python_callback = emit_python_callback
    _guard_the_cluster()


def _emit(server, ctx, callback, token, operands, operand_avals, result_avals, has_side_effect, partitioned, sharding):
    from jax._src import core, dtypes, ffi
    from jax._src.interpreters import mlir

    def checked(*args):
        with local_cpu():
            try:
                values = callback(*args)
            except ValueError as error:
                if "Received incompatible devices" not in str(error):
                    raise
                raise RuntimeError(_ADVICE) from error  # both are "CPU" to JAX
            if len(values) != len(result_avals):
                raise RuntimeError("Mismatched number of outputs from callback. "
                                   f"Expected: {len(result_avals)}, Actual: {len(values)}")
            canonical = getattr(dtypes, "canonicalize_value", None) or _canonicalize
            values = tuple(np.asarray(canonical(np.asarray(v))) for v in values)
        for i, (value, aval) in enumerate(zip(values, result_avals)):
            if value.shape != aval.shape:
                raise RuntimeError(f"Incorrect output shape for return value #{i}: Expected: {aval.shape}, "
                                   f"Actual: {value.shape}")
            if value.dtype != aval.dtype:
                raise RuntimeError(f"Incorrect output dtype for return value #{i}: Expected: {aval.dtype}, "
                                   f"Actual: {value.dtype}")
        return values

    kind, target = (callbacks.PartFunction, _TARGET_OF_PARTS) if partitioned else (callbacks.Function, _TARGET)
    number, handle = server.register(kind(
        checked, [spec(aval) for aval in operand_avals], [spec(aval) for aval in result_avals]))
    ctx.module_context.add_keepalive(handle)
    if token:
        operands = [token, *operands]
        sharding = _with_token(ctx, sharding)
        ctx = dataclasses.replace(ctx, avals_in=[core.abstract_token, *ctx.avals_in],
                                  avals_out=[core.abstract_token, *ctx.avals_out])
    result = ffi.build_ffi_lowering_function(target, has_side_effect=has_side_effect)(
        ctx, *operands, index=np.uint64(number))
    if sharding is not None:
        if len(inspect.signature(mlir.set_sharding).parameters) == 3:
            mlir.set_sharding(ctx.module_context, result, sharding)
        else:  # up to 0.10.0
            mlir.set_sharding(result, sharding)
    results = result.results
    if token:
        token, *results = results
    return results, token, None


def _canonicalize(value):
    from jax._src import dtypes
    return value.astype(dtypes.canonicalize_dtype(value.dtype), copy=False)


def _with_token(ctx, sharding):
    """One annotation more, for the token, where the results have some."""
    from jax._src import config
    try:
        from jax._src.sharding_impls import SdyArray, SdyArrayList
    except ImportError:
        return sharding
    if not (config.use_shardy_partitioner.value and isinstance(sharding, SdyArrayList) and len(ctx.avals_out) > 0):
        return sharding
    of_token = SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=sharding.shardings[0].logical_device_ids)
    return SdyArrayList((of_token, *sharding.shardings))


def local_cpu():
    from jax._src import config, xla_bridge
    return config.default_device(xla_bridge.local_devices(backend="cpu")[0])


def _guard_the_cluster():
    """What would wait for the cluster raises in a callback."""
    from jax._src import array
    from jax._src.interpreters import pxla

    def refuse_if(on_cluster):
        if callbacks.in_callback() and on_cluster():
            raise RuntimeError(_ADVICE)

    def is_there(x):
        devices = x.sharding._internal_device_list
        return len(devices) > 0 and questions.is_ours(devices[0].client)

    stock_value = array.ArrayImpl._value
    stock_block = array.ArrayImpl.block_until_ready
    stock_call = pxla.ExecuteReplicated.__call__
    stock_put = pxla.batched_device_put

    @property
    def value(self):
        refuse_if(lambda: is_there(self))
        return stock_value.__get__(self)

    def block_until_ready(self):
        refuse_if(lambda: is_there(self))
        return stock_block(self)

    def execute(self, *args):
        refuse_if(lambda: questions.is_ours(self.backend))
        return stock_call(self, *args)

    @functools.wraps(stock_put)
    def batched_device_put(aval, sharding, xs, devices, *args, **kwargs):
        refuse_if(lambda: bool(devices) and questions.is_ours(devices[0].client))
        return stock_put(aval, sharding, xs, devices, *args, **kwargs)

    array.ArrayImpl._value = value
    array.ArrayImpl.block_until_ready = block_until_ready
    pxla.ExecuteReplicated.__call__ = execute
    pxla.batched_device_put = batched_device_put
