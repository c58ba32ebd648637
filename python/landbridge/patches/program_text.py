"""Compiled programs tell their optimised HLO: as_text(), hlo_modules(), cost_analysis().

The server sends the module; XLA's own code in this process turns it into text, and counts its costs. (Without this patch the
server makes the text; a jaxlib before 0.10.2 does not ask it.)
"""
import base64

from landbridge import patches, questions

NAME = "program_text"


def _hlo_module_class():
    try:
        from jaxlib import _hlo
        return _hlo.HloModule
    except ImportError:  # before 0.10.2
        from jaxlib import _jax
        return _jax.HloModule


def check():
    from jaxlib import _jax
    if reason := patches.unknown_release("compiled programs tell no text"):
        return reason
    for name in ("get_hlo_text", "hlo_modules", "cost_analysis"):
        if not hasattr(_jax.LoadedExecutable, name):
            return f"jaxlib's LoadedExecutable has no {name}"
    if not hasattr(_hlo_module_class(), "from_serialized_hlo_module_proto"):
        return "jaxlib's HloModule cannot be made from bytes"
    if not hasattr(_jax, "hlo_module_cost_analysis"):
        return "jaxlib has no hlo_module_cost_analysis"
    return None


def install():
    from jax._src import xla_bridge
    from jaxlib import _jax
    executable, module_class = _jax.LoadedExecutable, _hlo_module_class()
    stock_text, stock_modules, stock_cost = executable.get_hlo_text, executable.hlo_modules, executable.cost_analysis
    stock_count = _jax.hlo_module_cost_analysis

    def module_of(self):
        return module_class.from_serialized_hlo_module_proto(base64.b64decode(stock_text(self)))

    def get_hlo_text(self):
        return module_of(self).to_string() if questions.is_ours(self.client) else stock_text(self)

    def hlo_modules(self):
        return [module_of(self)] if questions.is_ours(self.client) else stock_modules(self)

    def cost_analysis(self):
        if not questions.is_ours(self.client):
            return stock_cost(self)
        return stock_count(xla_bridge.get_backend("cpu"), module_of(self))

    def hlo_module_cost_analysis(client, module):
        # Of a lowered program. It is the platform that counts, and the client's own CPU is of the same kind.
        return stock_count(xla_bridge.get_backend("cpu") if questions.is_ours(client) else client, module)

    for function, stock in ((get_hlo_text, stock_text), (hlo_modules, stock_modules), (cost_analysis, stock_cost),
                            (hlo_module_cost_analysis, stock_count)):
        function.__wrapped__ = stock
    executable.get_hlo_text, executable.hlo_modules, executable.cost_analysis = get_hlo_text, hlo_modules, cost_analysis
    _jax.hlo_module_cost_analysis = hlo_module_cost_analysis
