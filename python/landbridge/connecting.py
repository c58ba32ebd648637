"""Connecting to a proxy: what is said while it takes long, and what a failure means.

The stock client tries again every second and says nothing until its time is over. (Its own callback for progress is of no
use: one that is still due when the interpreter exits aborts the process.)
"""
import contextlib
import logging
import socket
import threading

logger = logging.getLogger(__name__)

SAY_AFTER_S = 3.0
SAY_EVERY_S = 15.0
_PROBE_S = 2.0

# What gRPC says when whoever listens does not speak its protocol.
_NO_PROXY_TEXTS = ("Failed parsing HTTP/2", "before receiving SETTINGS", "http1", "HTTP/1", "Socket closed",
                   "Connection reset", "Broken pipe", "UNIMPLEMENTED")


def host_and_port(target):
    """("host", port) of grpc://host:port, or None for the other forms that gRPC takes (dns:///..., unix:...)."""
    host, colon, port = target.partition("://")[2].rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return None
    return host.strip("[]"), int(port)


def who_listens(target):
    """What a plain connection to the target's port shows, in words; None if it cannot be tried."""
    address = host_and_port(target)
    if address is None:
        return None
    try:
        with socket.create_connection(address, timeout=_PROBE_S):
            return "something listens there, but has not answered as a ready proxy yet"
    except socket.gaierror as error:
        return f"the host {address[0]!r} is unknown: {error.strerror}"
    except (ConnectionRefusedError, TimeoutError, OSError) as error:
        if isinstance(error, ConnectionRefusedError):
            return "nothing listens there (connection refused)"
        return f"it cannot be reached: {error}"


def hint(text):
    """What the text of a failed connection means, as a sentence; empty if it speaks for itself."""
    if "this proxy has no devices" in text or "share no version" in text:
        return ""  # the proxy's own words
    if "Connection refused" in text:
        return "Nothing listens at that address: is the cluster up?"
    if any(sign in text for sign in _NO_PROXY_TEXTS):
        return ("Something listens there that is no Landbridge proxy: is that the proxy's port, and not the resource "
                "manager's or a worker's?")
    return ""


@contextlib.contextmanager
def said_aloud(target, timeout_s):
    """While the block runs for long: log lines that say what is waited for."""
    done = threading.Event()

    def say():
        delay = SAY_AFTER_S
        while not done.wait(delay):
            delay = SAY_EVERY_S
            found = who_listens(target)
            logger.warning("waiting for a Landbridge proxy at %s%s; gives up after %d s", target,
                           f" ({found})" if found else "", timeout_s)

    thread = threading.Thread(target=say, name="landbridge-connecting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
