"""jax.experimental.buffer_callback: Python functions that fill their results in place.

On plain JAX the buffers are the device's own. Here the function gets copies of the operands, and what it leaves in the result
buffers is sent back; an operand that a result aliases shares its memory with it, as there.
"""
import inspect

import numpy as np

from landbridge import callbacks, patches, questions
from landbridge.patches import callbacks as python_callbacks

NAME = "buffer_callback"

_TARGET = "xla_buffer_python_cpu_callback"
_PARAMETERS = ["ctx", "args", "callback", "in_tree", "out_tree", "has_side_effect", "input_output_aliases",
               "command_buffer_compatible", "_"]


def check():
    if reason := patches.unknown_release("buffer callbacks are refused"):
        return reason
    from jax._src import buffer_callback, ffi
    if not patches.is_installed("callbacks"):
        return "it needs the patch 'callbacks'"
    found = list(inspect.signature(buffer_callback._buffer_callback_lowering).parameters)
    if found != _PARAMETERS:
        return f"_buffer_callback_lowering takes {found}"
    for owner, name in ((buffer_callback, "buffer_callback_p"), (buffer_callback, "ExecutionStage"), (ffi, "ffi_lowering")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    return questions.check()


class Buffer:
    """What jax.experimental.buffer_callback.Buffer is: an array-like of memory that results are written to."""

    def __init__(self, values, writeable):
        self._values = values
        self._seen = values if writeable else values.view()
        self._seen.flags.writeable = writeable

    shape = property(lambda self: self._values.shape)
    dtype = property(lambda self: self._values.dtype)
    ndim = property(lambda self: self._values.ndim)
    writeable = property(lambda self: self._seen.flags.writeable)

    def __array__(self, dtype=None, copy=None):
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"a buffer of dtype {self.dtype} is no array of dtype {np.dtype(dtype)} without a copy")
            return self._seen.astype(dtype)
        return self._seen.copy() if copy else self._seen

    def __dlpack__(self, **kwargs):
        return self._values.__dlpack__(**kwargs)  # NumPy exports nothing that is read-only

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()


class ExecutionContext:
    """What jax.experimental.buffer_callback.ExecutionContext is, on a CPU."""

    @property
    def stage(self):
        from jax._src import buffer_callback
        return buffer_callback.ExecutionStage.EXECUTE

    @property
    def stream(self):
        import jax
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: XLA FFI GPU context is not available")


class Function(callbacks.Function):
    """Gets its operands and the results to fill."""

    def __init__(self, call, operands, results, aliases):
        super().__init__(call, operands, results)
        self._aliases = aliases  # operand: result

    def values(self, args):
        args = [np.array(a) for a in args]  # memory of their own
        of_result = {result: args[operand] for operand, result in self._aliases.items()}
        results = [of_result[i] if i in of_result else np.zeros(shape, dtype)
                   for i, (shape, dtype) in enumerate(self.results)]
        self.call(ExecutionContext(), [Buffer(a, False) for a in args], [Buffer(r, True) for r in results])
        return results


def install():
    from jax._src import buffer_callback, ffi, tree_util
    from jax._src.interpreters import mlir
    stock = buffer_callback._buffer_callback_lowering

    def lowering(ctx, *args, callback, in_tree, out_tree, has_side_effect, input_output_aliases, **kwargs):
        server = callbacks.server_of(ctx.module_context.backend) if len(ctx.module_context.platforms) == 1 else None
        if server is None:
            return stock(ctx, *args, callback=callback, in_tree=in_tree, out_tree=out_tree, has_side_effect=has_side_effect,
                         input_output_aliases=input_output_aliases, **kwargs)

        def call(context, operands, results):
            args, kwargs = tree_util.tree_unflatten(in_tree, operands)
            with python_callbacks.local_cpu():
                if callback(context, tree_util.tree_unflatten(out_tree, results), *args, **kwargs) is not None:
                    raise ValueError("buffer_callback callback must not return any values.")

        number, handle = server.register(Function(
            call, [python_callbacks.spec(aval) for aval in ctx.avals_in],
            [python_callbacks.spec(aval) for aval in ctx.avals_out], dict(input_output_aliases)))
        ctx.module_context.add_keepalive(handle)
        rule = ffi.ffi_lowering(_TARGET, has_side_effect=has_side_effect, operand_output_aliases=dict(input_output_aliases))
        return rule(ctx, *args, index=np.uint64(number))

    lowering.__wrapped__ = stock
    mlir.register_lowering(buffer_callback.buffer_callback_p, lowering)
