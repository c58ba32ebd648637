"""Uploads by file through a directory that clients and proxy share (ifrt-proxy protocol 17 and later)."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from conftest import fresh_cluster
from servers import assert_no_forbidden_words, until
from wire import Door, OwnSession, make_array, message

DIRECTORY = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
THRESHOLD = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    with fresh_cluster(f"--proxy-arg=--shared_transfer_directory={directory}", slices=1, devices=2) as cluster:
        yield cluster, directory


# Both clients count their files from 1, so without folders of their own they would write the same names.
UPLOADS = """
import sys
import jax, numpy as np
f = jax.jit(lambda v: v + 0)
for i in range(60):
    x = np.full((64, 1024), 1000 * {me} + i, np.float32)
    y = jax.device_put(x, jax.devices()[i % 2])
    np.testing.assert_array_equal(np.asarray(f(y)), x)
print("good", flush=True)
sys.stdin.readline()
"""


def test_two_sessions_with_one_directory(shared):
    cluster, directory = shared
    clients = [cluster.start(UPLOADS.format(me=me), **{DIRECTORY: str(directory), THRESHOLD: "1000"}) for me in (1, 2)]
    for client in clients:
        assert client.stdout.readline() == "good\n", client.communicate()
    # Each had a folder of its own, and no file is left in it.
    folders = list(directory.iterdir())
    assert len(folders) == 2 and all(f.is_dir() and f.name.startswith("landbridge-") for f in folders)
    assert [list(f.iterdir()) for f in folders] == [[], []]
    sent = cluster.status()["proxy"]["front_door"]["uploads_by_file"]
    assert sent >= 120
    for client in clients:
        client.communicate("\n", timeout=120)
        assert client.returncode == 0
    until(lambda: not list(directory.iterdir()), lambda: f"an empty directory: {list(directory.iterdir())}")


def test_a_killed_client_leaves_no_files(shared):
    cluster, directory = shared
    client = cluster.start(UPLOADS.format(me=3), **{DIRECTORY: str(directory), THRESHOLD: "1000"})
    assert client.stdout.readline() == "good\n"
    folder, = directory.iterdir()
    (folder / "lt_77").write_bytes(b"an upload whose request never came")
    client.kill()
    client.wait()
    until(lambda: not list(directory.iterdir()), lambda: f"an empty directory: {list(directory.iterdir())}")


def test_a_file_cut_short_is_an_error_of_its_array(shared):
    """A client that still writes what it has handed over harms nobody but its own array, the proxy least of all."""
    cluster, directory = shared
    proxy = cluster.pid("proxy")
    size = 32 << 20
    with Door(cluster.address) as door:
        session = OwnSession(door)
        file = directory / "lt_5"
        with open(file, "wb") as writer:
            writer.truncate(size)
            metadata = message("GrpcHostBufferStoreMetadata", session_id=session.id, handle=5, buffer_size=size)
            door.unary("HostBufferReadFromDisk", message("GrpcHostBufferReadFromDiskRequest", metadata=metadata),
                       "GrpcHostBufferReadFromDiskResponse")
            assert not file.exists()
            writer.truncate(5 << 20)
            session.call(make_array_from_host_buffer_request=make_array(5, [size // 4]))
            waited = session.call(check_value_ready_request=message("CheckValueReadyRequest", value_handles=[5]))
        status = waited.response_metadata.status
        assert status.code == 3 and "'lt_5' in the shared directory was cut short" in status.message, status
        assert_no_forbidden_words(status.message)
        session.close()
    until(lambda: cluster.status()["proxy"]["counts"]["sessions"] == 0, "the end of the session, which had the directory")
    done = cluster.script("import jax; print(float(jax.jit(lambda v: v + 1)(1.0)))")
    assert done.stdout.strip() == "2.0" and cluster.pid("proxy") == proxy


STOCK = """
import os, sys
os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
import jax, numpy as np
from jax.extend.backend import ifrt_proxy, register_backend_factory
register_backend_factory("proxy", lambda: ifrt_proxy.get_client(os.environ["JAX_BACKEND_TARGET"],
                         ifrt_proxy.ClientConnectionOptions()), priority=-1)
"""


def test_stock_clients_take_turns(shared):
    """Without the package no folder is announced: the second such session is refused while the first lives."""
    cluster, directory = shared
    env = {DIRECTORY: str(directory), THRESHOLD: "1000"}
    code = STOCK + "jax.config.update('jax_platforms', 'proxy')\nfrom jax._src import xla_bridge\n" + UPLOADS
    code = code.replace("import jax, numpy as np\nfrom jax.extend", "import jax\nimport landbridge.jax_plugin\n"
                        "landbridge.jax_plugin.initialize = lambda: None\nimport numpy as np\nfrom jax.extend", 1)
    first = cluster.start(code.format(me=4), **env)
    assert first.stdout.readline() == "good\n", first.communicate()
    second = cluster.start(code.format(me=5), **env)
    out, err = second.communicate(timeout=240)
    assert second.returncode != 0 and "good" not in out
    assert "another session uploads through the shared directory" in err and "install the landbridge package" in err, err
    first.communicate("\n", timeout=120)
    assert first.returncode == 0
    until(lambda: cluster.status()["proxy"]["counts"]["sessions"] == 0, "the end of the sessions")
    third = cluster.start(code.format(me=6), **env)
    assert third.stdout.readline() == "good\n", third.communicate()
    third.communicate("\n", timeout=120)
    assert list(directory.iterdir()) == []


def test_a_directory_that_cannot_be_used(cluster):
    done = cluster.script("import jax; jax.devices()", check=False, **{DIRECTORY: "/no/such/folder", THRESHOLD: "1000"})
    assert done.returncode == 1
    assert f"{DIRECTORY} is '/no/such/folder', where no folder for this client can be made" in done.stderr


def test_a_proxy_without_a_shared_directory(cluster, tmp_path):
    done = cluster.script("""
        import jax, numpy as np
        print(np.asarray(jax.device_put(np.ones((64, 1024), np.float32))).sum())
        """, check=False, **{DIRECTORY: str(tmp_path), THRESHOLD: "1000"})
    assert done.returncode == 1
    assert "this proxy has no shared directory for uploads: start it with --shared_transfer_directory" in done.stderr
    assert_no_forbidden_words(done.stderr)
