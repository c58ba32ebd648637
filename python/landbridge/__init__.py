"""The client side of Landbridge.

Installing this package is enough: with JAX_PLATFORMS=proxy and JAX_BACKEND_TARGET=grpc://HOST:PORT, JAX finds
the cluster through its plugin entry point (see jax_plugin.py), and no import of this package is needed.

    landbridge.virtual_compute(x, duration_us=500)   device work that is a timer
    landbridge.cluster(slices=2)                     a local cluster for tests and notebooks
    landbridge.hints(phase="backward")               wishes of one program to the scheduler
"""
from landbridge._version import __version__

__all__ = ["__version__", "ClusterError", "cluster", "hints", "virtual_compute"]


def __getattr__(name):
    # Late, so that JAX's plugin discovery, which imports this package, imports nothing else.
    if name == "virtual_compute":
        from landbridge.virtual import virtual_compute
        return virtual_compute
    if name == "hints":
        from landbridge.scheduling import hints
        return hints
    if name in ("cluster", "ClusterError"):
        from landbridge import local
        return getattr(local, name)
    raise AttributeError(f"module 'landbridge' has no attribute {name!r}")
