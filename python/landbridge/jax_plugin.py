"""What JAX calls at the start of backend discovery (entry point group `jax_plugins`).

Does nothing unless JAX_PLATFORMS (or jax.config.jax_platforms) names "proxy". Then, in this order, because a
client that has connected reads none of it again: plaintext credentials, malloc options, the patches, and the
backend factory.
"""
import logging
import os

from landbridge._version import __version__

logger = logging.getLogger(__name__)

CREDENTIALS = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
TIMEOUT = "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS"
DEFAULT_TIMEOUT_S = 120  # of the stock client


class TargetError(RuntimeError):
    """JAX_BACKEND_TARGET is missing or malformed."""


def proxy_is_wanted():
    import jax
    return "proxy" in (jax.config.jax_platforms or "").split(",")


def checked_target(target):
    """`target`, or an error that says what it should be: stock JAX would retry a bad one until its time-out."""
    form = "the address of a Landbridge proxy such as grpc://127.0.0.1:29000"
    if not target:
        raise TargetError(
            f"JAX_PLATFORMS names proxy, but JAX_BACKEND_TARGET is not set. Set it to {form}, or run the script "
            "with `landbridge run -- python SCRIPT`, which starts a local cluster and sets both.")
    scheme, colon, rest = target.partition("://")
    if not colon or scheme != "grpc" or not rest:
        raise TargetError(f"JAX_BACKEND_TARGET is {target!r}, which is not {form}.")
    return target


def connection_timeout():
    """Seconds from PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS, or None for JAX's default of two minutes."""
    text = os.environ.get(TIMEOUT)
    if not text:
        return None
    try:
        seconds = int(text)
    except ValueError:
        seconds = 0
    if seconds <= 0:
        raise TargetError(f"{TIMEOUT} is {text!r}, but must be a whole number of seconds above 0.")
    return seconds


def make_client():
    import jax
    from jax.extend.backend import ifrt_proxy
    from landbridge import connecting

    target = checked_target(jax.config.read("jax_backend_target"))
    options = ifrt_proxy.ClientConnectionOptions()
    seconds = connection_timeout()
    if seconds is not None:
        options.connection_timeout_in_seconds = seconds
    try:
        with connecting.said_aloud(target, seconds or DEFAULT_TIMEOUT_S):
            return ifrt_proxy.get_client(target, options)
    except Exception as error:
        hint = connecting.hint(str(error))
        raise RuntimeError(
            f"cannot reach a Landbridge proxy at {target}: {error}.{' ' + hint if hint else ''} `landbridge status` shows "
            "local clusters and the logs of their servers; the log of the proxy says what it waits for.") from error


def add_local_cpu():
    """Callbacks, and what counts costs, use this process's own CPU: JAX is to know it beside the cluster."""
    import jax
    platforms = (jax.config.jax_platforms or "").split(",")
    if "cpu" not in platforms:
        jax.config.update("jax_platforms", ",".join([*platforms, "cpu"]))


def initialize():
    """The entry point. Never raises: what is wrong is said when the backend is made."""
    if not proxy_is_wanted():
        return
    # The stock client speaks TLS-like credentials of one cloud only unless told otherwise.
    os.environ.setdefault(CREDENTIALS, "true")
    from landbridge import announcing, host_memory, patches
    host_memory.tune_malloc()
    patches.install_all()
    announcing.install()
    if patches.is_installed("callbacks") or patches.is_installed("program_text"):
        add_local_cpu()
    from jax._src import xla_bridge
    if "proxy" in xla_bridge._backend_factories:
        logger.debug("a proxy backend is registered already (pathwaysutils); left as it is")
        return
    from jax.extend import backend
    backend.register_backend_factory("proxy", make_client, priority=-1)
