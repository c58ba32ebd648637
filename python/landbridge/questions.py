"""Questions to the server for which the client's protocol has no message.

A question is compiled as a program of its own kind; the answer is that program's text.
"""
import json

RUNTIME = "proxy/landbridge"


def is_ours(client):
    return client.runtime_type.startswith(RUNTIME)


def check():
    """None, or what this jaxlib lacks for questions."""
    from jaxlib import _jax
    programs = getattr(_jax, "ifrt_programs", None)
    for owner, name in ((programs, "make_plugin_program"), (programs, "make_plugin_compile_options"),
                        (_jax.Client, "compile_ifrt_program"), (_jax.LoadedExecutable, "get_hlo_text")):
        if not hasattr(owner, name):
            return f"jaxlib has no {name}"
    return None


def _stock_text():
    from jaxlib import _jax
    text = _jax.LoadedExecutable.get_hlo_text
    return getattr(text, "__wrapped__", text)  # patches/program_text.py


def ask(client, question):
    """The server's answer, decoded. Blocks until it is there."""
    from jaxlib import _jax
    programs = _jax.ifrt_programs
    program = programs.make_plugin_program(json.dumps({"landbridgeQuestion": question}))
    return json.loads(_stock_text()(client.compile_ifrt_program(program, programs.make_plugin_compile_options())))
