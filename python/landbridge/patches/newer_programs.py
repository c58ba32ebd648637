"""Programs with operations that the stock client's message has no room for.

The client writes programs in the StableHLO of twelve weeks before its release, whatever the server knows: what is newer
(asynchronous collectives, control dependencies) fails there. Such a program, and no other, is sent in the newest version that
both sides know.
"""
import functools
import inspect

from landbridge import patches, questions

NAME = "newer_programs"

PARAMETERS = ["backend", "module", "executable_devices", "options", "host_callbacks"]
_FAILURE = "Failed to serialize StableHLO"


def check():
    if reason := patches.unknown_release("programs with operations newer than the client's message are refused"):
        return reason
    from jax._src import compiler
    from jax._src.lib.mlir.dialects import hlo
    from jaxlib import _jax
    found = list(inspect.signature(compiler.backend_compile_and_load).parameters)
    if found != PARAMETERS:
        return f"backend_compile_and_load takes {found}"
    for owner, name in ((_jax.mlir, "serialize_portable_artifact"), (hlo, "get_current_version"),
                        (_jax.CompileOptions, "SerializeAsString")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    return questions.check()


def _version_for(client):
    from jax._src.lib.mlir.dialects import hlo
    ours = tuple(int(part) for part in hlo.get_current_version().split("."))
    return ".".join(map(str, min(ours, tuple(client.stablehlo_current_version))))


def artifact(client, module):
    """The bytes that the server takes."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    return _jax.mlir.serialize_portable_artifact(mlir.module_to_bytecode(module), _version_for(client), True)


def install():
    from jax._src import compiler
    from jaxlib import _jax
    stock = compiler.backend_compile_and_load

    @functools.wraps(stock)
    def backend_compile_and_load(backend, module, executable_devices, options, host_callbacks):
        try:
            return stock(backend, module, executable_devices, options, host_callbacks)
        except _jax.JaxRuntimeError as error:
            if host_callbacks or not questions.is_ours(backend) or _FAILURE not in str(error):
                raise
        return questions.load(backend, b"landbridgeProgram", artifact(backend, module), options)

    compiler.backend_compile_and_load = backend_compile_and_load
