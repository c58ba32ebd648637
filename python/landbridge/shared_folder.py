"""Uploads through a directory that client and proxy share.

The stock client writes IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY/lt_N and counts N from 1, so two clients
with one directory would overwrite each other's files. This package gives each client a folder of its own below it, and
the proxy is told its name. The proxy removes it at the end of the session.
"""
import os
import re
import secrets

DIRECTORY = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
# What the proxy looks for in the client's initialization data.
KEY = "landbridge_shared_folder"


_OURS = re.compile(r"landbridge-\d+-[0-9a-f]{16}")


class SharedFolderError(RuntimeError):
    """The directory cannot be used."""


def take():
    """Makes the folder and points the client to it. Its name, or None without a shared directory."""
    root = os.environ.get(DIRECTORY)
    if not root:
        return None
    if _OURS.fullmatch(os.path.basename(root)):
        root = os.path.dirname(root)  # inherited from a client that is our parent process
    name = f"landbridge-{os.getpid()}-{secrets.token_hex(8)}"
    folder = os.path.join(root, name)
    try:
        os.mkdir(folder, 0o755)
    except OSError as error:
        raise SharedFolderError(
            f"{DIRECTORY} is {root!r}, where no folder for this client can be made: {error.strerror}. It must be the "
            "directory that the proxy was started with (--shared_transfer_directory); or unset the variable.") from error
    os.environ[DIRECTORY] = folder
    return name


def give_back(name):
    """After a failed connection: removes the folder, and puts the variable back for the next try."""
    folder = os.environ.get(DIRECTORY, "")
    if name and os.path.basename(folder) == name:
        os.environ[DIRECTORY] = os.path.dirname(folder)
        try:
            os.rmdir(folder)
        except OSError:
            pass  # not empty: the proxy will
