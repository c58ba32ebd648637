"""Questions to the server for which the client's protocol has no message.

A question is compiled as a program of its own kind; the answer is that program's text.
"""
import base64
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


def _compile(client, text):
    from jaxlib import _jax
    programs = _jax.ifrt_programs
    return client.compile_ifrt_program(programs.make_plugin_program(text), programs.make_plugin_compile_options())


def make(client, program):
    """The executable that the server makes of a JSON object."""
    return _compile(client, json.dumps(program))


def ask(client, question):
    """The server's answer, decoded. Blocks until it is there."""
    return json.loads(_stock_text()(make(client, {"landbridgeQuestion": question})))


def ask_about(client, kind, body, options):
    """The server's answer about `body`, a program of jaxlib's CompileOptions, decoded. Blocks until it is there."""
    return json.loads(_stock_text()(load(client, kind, body, options)))


def load(client, kind, body, options=None, **head):
    """The executable that the server makes of `body`, bytes of the given kind, with jaxlib's CompileOptions."""
    if options is not None:
        head["options"] = base64.b64encode(options.SerializeAsString()).decode()
    return _compile(client, b"".join((kind, b" ", json.dumps(head).encode(), b"\n", body)))
