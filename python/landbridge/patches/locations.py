"""Programs without the lines of Python that they came from.

Stock JAX writes the traceback of each operation into the program that it sends, so the same function traced from two
lines of a script is two programs, and compiled twice. (JAX leaves them out of the key of its own cache on disk, too.)
Here operations keep their names ("jit(step)/dot_general:"), which profiles and HLO show, and lose file and line. Programs
for other backends than Landbridge keep everything.
"""
import inspect

NAME = "locations"

_PARAMETERS = ["ctx", "primitive", "name_stack", "traceback"]


def check():
    from jax._src.interpreters import mlir
    stock = getattr(mlir, "source_info_to_location", None)
    if stock is None:
        return "jax._src.interpreters.mlir has no source_info_to_location"
    found = list(inspect.signature(stock).parameters)
    if found != _PARAMETERS:
        return f"source_info_to_location takes {found}"
    if "backend" not in getattr(mlir.ModuleContext, "__annotations__", {}):
        return "ModuleContext does not say which backend it lowers for"
    return None


def install():
    from jax._src.interpreters import mlir
    stock = mlir.source_info_to_location

    def source_info_to_location(ctx, primitive, name_stack, traceback):
        backend = getattr(getattr(ctx, "module_context", ctx), "backend", None)
        if backend is not None and backend.runtime_type.startswith("proxy"):
            traceback = None
        return stock(ctx, primitive, name_stack, traceback)

    source_info_to_location.__wrapped__ = stock
    mlir.source_info_to_location = source_info_to_location
