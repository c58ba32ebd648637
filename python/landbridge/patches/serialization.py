"""Compiled programs that the client keeps: JAX's persistent compilation cache, jax.experimental.serialize_executable.

The stock proxy client refuses to serialize. Here the server gives the program out, sealed, and takes it back without
compiling; what it did not make itself, or cannot run any more, it refuses, and JAX compiles.

A program that calls Python functions of this process is not kept: they are numbers that mean something in this process only.
"""
import base64
import functools
import inspect

from landbridge import patches, questions

NAME = "serialization"

_CACHE_WRITE_PARAMETERS = ["cache_key", "compile_time_secs", "module_name", "backend", "executable", "host_callbacks"]


def check():
    from jax._src import compiler
    from jaxlib import _jax
    if reason := patches.unknown_release("compiled programs cannot be serialized"):
        return reason
    for owner, name in ((_jax.LoadedExecutable, "serialize"), (_jax.LoadedExecutable, "fingerprint"),
                        (_jax.Client, "serialize_executable"), (_jax.Client, "deserialize_executable"),
                        (_jax.CompileOptions, "SerializeAsString"), (compiler, "_cache_write")):
        if not hasattr(owner, name):
            return f"{owner.__name__} has no {name}"
    found = list(inspect.signature(compiler._cache_write).parameters)
    if found != _CACHE_WRITE_PARAMETERS:
        return f"_cache_write takes {found}"
    return questions.check()


def _sealed(executable):
    fingerprint = executable.fingerprint
    if not fingerprint:  # what the server can give out has one
        raise NotImplementedError("this program calls Python functions of this process (callbacks), so it cannot be serialized")
    answer = questions.ask(executable.client, {"serialize": {"fingerprint": fingerprint.hex()}})
    return base64.b64decode(answer["program"])


def _returned(client, sealed, devices, options):
    return questions.load(client, b"landbridgeExecutable", sealed, options, device_ids=[device.id for device in devices])


def install():
    from jax._src import compiler
    from jaxlib import _jax
    executable, client = _jax.LoadedExecutable, _jax.Client
    stock_serialize, stock_of_client = executable.serialize, client.serialize_executable
    stock_deserialize, stock_write = client.deserialize_executable, compiler._cache_write

    def serialize(self):
        return _sealed(self) if questions.is_ours(self.client) else stock_serialize(self)

    def serialize_executable(self, executable, *args, **kwargs):
        return _sealed(executable) if questions.is_ours(self) else stock_of_client(self, executable, *args, **kwargs)

    def deserialize_executable(self, serialized, executable_devices, compile_options=None, *args, **kwargs):
        if not questions.is_ours(self):
            return stock_deserialize(self, serialized, executable_devices, compile_options, *args, **kwargs)
        return _returned(self, serialized, executable_devices, compile_options)

    @functools.wraps(stock_write)
    def cache_write(cache_key, compile_time_secs, module_name, backend, executable, host_callbacks):
        if questions.is_ours(backend) and not executable.fingerprint:
            host_callbacks = ("some",)  # JAX leaves it out then, as it does in plain JAX
        stock_write(cache_key, compile_time_secs, module_name, backend, executable, host_callbacks)

    for function, stock in ((serialize, stock_serialize), (serialize_executable, stock_of_client),
                            (deserialize_executable, stock_deserialize)):
        function.__wrapped__ = stock
    executable.serialize = serialize
    compiler._cache_write = cache_write
    client.serialize_executable, client.deserialize_executable = serialize_executable, deserialize_executable
