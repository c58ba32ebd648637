"""What a client wants of the scheduler: of a program, through JAX's compiler options; of the whole session, through the
environment, when it connects.

    backward = jax.jit(backward, compiler_options=landbridge.hints(phase="backward"))

Which wishes count depends on the proxy's --scheduling_policy. They change when things run, never what they compute. On
other platforms XLA refuses options that it does not know, so `hints` gives none there.
"""
import os

WEIGHT, PRIORITY = "LANDBRIDGE_WEIGHT", "LANDBRIDGE_PRIORITY"
PHASES = ("forward", "backward")


def hints(*, priority=None, phase=None):
    """Compiler options of one program, for `jax.jit(f, compiler_options=...)`.

    priority: whole number; with --scheduling_policy=priority, what is ready and has the highest runs first (default: the
      session's).
    phase: "forward" or "backward"; with --scheduling_policy=backward_first, what a pipeline runs first, and what counts
      against --activation_budget: one launch of each for every micro-batch and device.
    """
    if phase is not None and phase not in PHASES:
        raise ValueError(f"phase is {phase!r}, but must be one of {', '.join(map(repr, PHASES))}")
    if priority is not None and int(priority) != priority:
        raise ValueError(f"priority is {priority!r}, but must be a whole number")
    if not _on_landbridge():
        return {}
    options = {}
    if priority is not None:
        options["landbridge_priority"] = str(int(priority))
    if phase is not None:
        options["landbridge_phase"] = phase
    return options


def _on_landbridge():
    import jax
    return "proxy" in (jax.config.jax_platforms or "").split(",")


def session_wishes():
    """From the environment, for the connection: names and values as the proxy takes them."""
    wishes = {}
    if WEIGHT in os.environ:
        wishes["landbridge_weight"] = _number(WEIGHT, float, 1e-3, 1e3)
    if PRIORITY in os.environ:
        wishes["landbridge_priority"] = _number(PRIORITY, int, -1_000_000, 1_000_000)
    return wishes


def _number(name, kind, low, high):
    # Said here, since the stock client does not show why a server refuses its connection.
    text = os.environ[name]
    try:
        good = low <= kind(text) <= high
    except ValueError:
        good = False
    if not good:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is {text!r}, but must be {what} from {low:g} to {high:g}.")
    return text.encode()
