"""Changes to stock JAX for clients of Landbridge: one module each, none of them needed to run.

A patch module has NAME, check() and install(). check() returns None, or why this version of JAX is not the one
it was written for; then it is left out with one warning and JAX stays as it is. Each patch passes every call that
is not about an array on a Landbridge client to the stock function. LANDBRIDGE_PATCHES=0 turns all off,
LANDBRIDGE_PATCHES=-NAME,-NAME some.
"""
import importlib
import os
import warnings

MODULES = ("strides", "device_put", "locations", "memory_stats", "program_text", "serialization",
           "callbacks", "buffer_callback", "newer_programs", "partitioning", "deletion")

# The releases of jaxlib that patches of its internals were tried with.
FIRST_RELEASE, LAST_RELEASE = (0, 10, 0), (0, 10, 2)

_installed = {}


def unknown_release(consequence):
    """Why this jaxlib is none that patches were tried with, and what follows; None if it is one."""
    import jaxlib.version
    if FIRST_RELEASE <= jaxlib.version.__version_info__[:3] <= LAST_RELEASE:
        return None
    return f"jaxlib {jaxlib.version.__version__} is not one that it is known to work with; {consequence}"


def is_off(name, setting):
    return setting == "0" or f"-{name}" in setting.split(",")


def is_installed(name):
    return _installed.get(name) == "installed"


def install_all():
    """Installs what is not yet installed. Returns {name: "installed" | "off" | reason}."""
    setting = os.environ.get("LANDBRIDGE_PATCHES", "")
    for module_name in MODULES:
        module = importlib.import_module(f"landbridge.patches.{module_name}")
        if _installed.get(module.NAME) == "installed":
            continue
        if is_off(module.NAME, setting):
            _installed[module.NAME] = "off"
            continue
        try:
            reason = module.check()
            if reason is None:
                module.install()
        except Exception as error:  # a patch must never keep JAX from starting
            reason = f"{type(error).__name__}: {error}"
        _installed[module.NAME] = reason or "installed"
        if reason:
            warnings.warn(f"landbridge: patch {module.NAME!r} is left out: {reason}", stacklevel=2)
    return dict(_installed)
