"""What a client tells the server when it connects: which extras this package adds to it.

Every client for a proxy is made by the same function of jaxlib, whoever calls it: this package, pathwaysutils, a user.
(No on_disconnect callback is added: one that is still set when the interpreter exits aborts the process.)
"""
import functools

from landbridge._version import __version__

PACKAGE_KEY = "landbridge_package"
SERIALIZES_KEY = "landbridge_serializes"
READS_MODULES_KEY = "landbridge_reads_modules"


def install():
    """Again: no effect."""
    from jax.extend.backend import ifrt_proxy
    stock = ifrt_proxy.get_client
    if getattr(stock, "announces", False):
        return

    @functools.wraps(stock)
    def get_client(target, options, *args, **kwargs):
        from landbridge import callbacks, patches, scheduling, shared_folder
        data = {PACKAGE_KEY: __version__.encode(), **scheduling.session_wishes()}
        if patches.is_installed("serialization"):
            data[SERIALIZES_KEY] = b"1"
        if patches.is_installed("program_text"):
            data[READS_MODULES_KEY] = b"1"
        server = callbacks.make_server(target) if patches.is_installed("callbacks") else None
        if server is not None:
            data[callbacks.TOKEN_KEY] = server.token
        folder = shared_folder.take()
        if folder is not None:
            data[shared_folder.KEY] = folder.encode()
        options.initialization_data = {**data, **(options.initialization_data or {})}
        try:
            client = stock(target, options, *args, **kwargs)
        except Exception:
            shared_folder.give_back(folder)
            raise
        callbacks.use(server)
        return client

    get_client.announces = True
    ifrt_proxy.get_client = get_client
