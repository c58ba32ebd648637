"""The package without servers. Each test that needs its own JAX state runs in a child process."""
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from landbridge import connecting, host_memory, jax_plugin, local, patches, shared_folder
from landbridge.patches import strides


def run(code, **env):
    """A child process's output; its environment holds none of ours that matter here."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "LANDBRIDGE", "PATHWAYS_"))}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env={**keep, **env}, capture_output=True,
                          text=True, timeout=240)


def test_targets():
    assert jax_plugin.checked_target("grpc://h:1") == "grpc://h:1"
    with pytest.raises(jax_plugin.TargetError, match="JAX_BACKEND_TARGET is not set.*landbridge run"):
        jax_plugin.checked_target(None)
    for bad in ("h:1", "http://h:1", "grpc://"):
        with pytest.raises(jax_plugin.TargetError, match="grpc://127.0.0.1:29000"):
            jax_plugin.checked_target(bad)


def test_connection_timeout(monkeypatch):
    monkeypatch.delenv(jax_plugin.TIMEOUT, raising=False)
    assert jax_plugin.connection_timeout() is None
    monkeypatch.setenv(jax_plugin.TIMEOUT, "7")
    assert jax_plugin.connection_timeout() == 7
    for bad in ("x", "0", "-1"):
        monkeypatch.setenv(jax_plugin.TIMEOUT, bad)
        with pytest.raises(jax_plugin.TargetError, match="whole number"):
            jax_plugin.connection_timeout()


def test_nothing_happens_unless_proxy_is_wanted():
    done = run("""
        import os, jax
        jax.devices()
        from jax._src import xla_bridge
        assert "proxy" not in xla_bridge._backend_factories
        assert "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS" not in os.environ
        print("ok")
        """, JAX_PLATFORMS="cpu")
    assert done.stdout == "ok\n", done.stderr


def test_missing_target_is_a_clear_error_at_once():
    done = run("import jax; jax.devices()", JAX_PLATFORMS="proxy")
    assert done.returncode == 1
    assert "JAX_BACKEND_TARGET is not set" in done.stderr


def test_dead_address_fails_within_its_time():
    done = run("""
        import time, jax
        t = time.monotonic()
        try:
            jax.devices()
        except RuntimeError as error:
            assert "cannot reach a Landbridge proxy at grpc://127.0.0.1:1" in str(error), error
            assert time.monotonic() - t < 60
            print("ok")
        """, JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET="grpc://127.0.0.1:1", PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="2")
    assert done.stdout == "ok\n", done.stderr


def test_credentials_and_patches_are_set_before_connecting():
    done = run("""
        import os, jax
        from landbridge import jax_plugin, patches
        jax_plugin.initialize()
        assert os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] == "true"
        assert set(patches.install_all().items()) == {
            (name, "installed") for name in patches.MODULES}, patches.install_all()
        from jax._src import xla_bridge
        assert xla_bridge._backend_factories["proxy"].factory is jax_plugin.make_client
        print("ok")
        """, JAX_PLATFORMS="proxy,cpu")
    assert done.stdout == "ok\n", done.stderr


def test_a_factory_that_is_there_stays():
    done = run("""
        from jax.extend import backend
        from jax._src import xla_bridge
        mine = lambda: None
        backend.register_backend_factory("proxy", mine, priority=-1)
        from landbridge import jax_plugin, patches
        jax_plugin.initialize()
        assert xla_bridge._backend_factories["proxy"].factory is mine
        assert patches.install_all()["strides"] == "installed"
        print("ok")
        """, JAX_PLATFORMS="proxy")
    assert done.stdout == "ok\n", done.stderr


def test_off_switches():
    assert patches.is_off("strides", "0")
    assert patches.is_off("strides", "-other,-strides")
    assert not patches.is_off("strides", "")
    assert not patches.is_off("strides", "-other")
    names = list(patches.MODULES)
    ask = "import jax; from landbridge import patches; print(*(f'{k}={v}' for k, v in patches.install_all().items()))"
    for off in [["strides"], ["device_put"], ["locations", "strides"], names]:
        done = run(ask, LANDBRIDGE_PATCHES="0" if off == names else ",".join(f"-{name}" for name in off))
        assert done.stdout.split() == [f"{n}={'off' if n in off else 'installed'}" for n in names], done.stderr


def test_a_patch_that_does_not_fit_is_left_out_with_a_warning():
    done = run("""
        import warnings
        from jax._src.interpreters import pxla
        stock = pxla.batched_device_put = lambda everything: None
        from landbridge import patches
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            answer = patches.install_all()
        assert "batched_device_put takes" in answer["strides"], answer
        # One warning for each that needs it, and for what builds on one of these; all leave it alone.
        assert ["left out" in str(w.message) for w in seen] == [True] * 3, seen
        assert "batched_device_put takes" in answer["callbacks"], answer
        assert answer["buffer_callback"] == "it needs the patch 'callbacks'", answer
        assert pxla.batched_device_put is stock
        print("ok")
        """)
    assert done.stdout == "ok\n", done.stderr


def test_programs_of_other_backends_keep_their_lines():
    done = run("""
        import jax
        from landbridge import patches
        assert patches.install_all()["locations"] == "installed"
        assert "<string>" in jax.jit(lambda v: v + 1).lower(1.0).as_text(debug_info=True)
        from landbridge.patches import locations
        from jax._src.interpreters import mlir
        mlir.source_info_to_location = lambda ctx, eqn: None
        assert locations.check() == "source_info_to_location takes ['ctx', 'eqn']", locations.check()
        print("ok")
        """, JAX_PLATFORMS="cpu")
    assert done.stdout == "ok\n", done.stderr


def test_device_put_stays_stock_on_a_jaxlib_that_it_does_not_know():
    done = run("""
        import warnings
        import jaxlib.version
        from jax._src import array, dispatch
        from jax._src.interpreters import pxla
        stock = pxla.shard_arg_handlers[array.ArrayImpl], dispatch._different_device_order_reshard
        from landbridge import patches
        for release in ((0, 9, 2), (0, 11, 0), (1, 0, 0)):
            jaxlib.version.__version_info__ = release
            jaxlib.version.__version__ = ".".join(map(str, release))
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                answer = patches.install_all()
            assert answer["device_put"].startswith(f"jaxlib {jaxlib.version.__version__} is not one"), answer
            told = [str(w.message) for w in seen]
            for name, follows in {"device_put": "goes through the client", "callbacks": "Python callbacks are refused",
                                  "memory_stats": "memory_stats() raises", "program_text": "tell no text",
                                  "serialization": "cannot be serialized", "buffer_callback": "buffer callbacks are refused",
                                  "newer_programs": "newer than the client's message are refused",
                                  "partitioning": "custom_partitioning are refused",
                                  "deletion": "does not see what happened to arrays with the same buffers"}.items():
                assert [follows in text for text in told if f"patch {name!r} is" in text] == [True], told
            assert len(told) == 9, told
        jaxlib.version.__version_info__ = (0, 10, 2)
        pxla.shard_arg_handlers[array.ArrayImpl] = lambda xs, other: None
        assert "takes ['xs', 'other']" in patches.install_all()["device_put"]
        pxla.shard_arg_handlers[array.ArrayImpl] = stock[0]
        assert patches.install_all()["device_put"] == "installed"
        assert pxla.shard_arg_handlers[array.ArrayImpl].__wrapped__ is stock[0]
        assert dispatch._different_device_order_reshard.__wrapped__ is stock[1]
        print("ok")
        """)
    assert done.stdout == "ok\n", done.stderr


def test_device_put_leaves_other_clients_alone():
    done = run("""
        import jax, numpy as np
        from jax._src import dispatch
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from jaxlib import _pathways
        from landbridge import patches
        assert patches.install_all()["device_put"] == "installed"
        def never(*args):
            raise AssertionError("this client is not ours")
        _pathways._transfer_to_shardings = never
        d = jax.devices()
        x = np.arange(16.0).reshape(4, 4)
        mesh = Mesh(np.array(d[:4]), ("x",))
        a = jax.device_put(x, NamedSharding(mesh, P("x")))
        for target in (NamedSharding(mesh, P()), NamedSharding(Mesh(np.array(d[:4][::-1]), ("x",)), P("x")), d[2]):
            np.testing.assert_array_equal(np.asarray(jax.device_put(a, target)), x)
        print("ok")
        """, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4", PJRT_NPROC="8")
    assert done.stdout == "ok\n", done.stderr


def test_strides():
    a = np.arange(6.0).reshape(2, 3)
    assert strides.with_plain_strides(a) is a
    assert strides.with_plain_strides(a.T) is not None and strides.with_plain_strides(a.T).base is a.T.base
    flipped = strides.with_plain_strides(a[::-1])
    assert flipped.strides == (24, 8) and np.array_equal(flipped, [[3, 4, 5], [0, 1, 2]])
    wide = strides.with_plain_strides(np.broadcast_to(np.float32(2), (4, 5)))
    assert wide.strides == (20, 4) and wide.sum() == 40

    class Held:         # as JAX before 0.9 holds arrays
        def __init__(self, val, weak_type):
            self.val, self.weak_type = val, weak_type
    held = strides.with_plain_strides(Held(a[::-1], True))
    assert type(held) is Held and held.weak_type and held.val.strides == (24, 8) and np.array_equal(held.val, a[::-1])
    plain = Held(a, False)
    assert strides.with_plain_strides(plain) is plain

    one = np.broadcast_to(np.ones((1, 3)), (1, 3))
    assert strides.with_plain_strides(one) is one  # a stride of a dimension of 1 does not matter
    assert strides.with_plain_strides(3.0) == 3.0


def test_mallopt(monkeypatch):
    monkeypatch.setenv("LANDBRIDGE_MALLOPT", "0")
    assert host_memory.tune_malloc() is False
    done = run("from landbridge import host_memory; print(host_memory.tune_malloc())")
    assert done.stdout in ("True\n", "False\n")


def test_virtual_compute_lowers_to_our_operation():
    done = run("""
        import jax, jax.numpy as jnp, landbridge
        f = jax.jit(lambda x: landbridge.virtual_compute(x * 2, duration_us=1234))
        text = f.lower(jnp.ones(4)).as_text()
        assert "landbridge_virtual_compute" in text and "1234 : i64" in text, text
        try:
            landbridge.virtual_compute(jnp.ones(4), duration_us=-1)
        except ValueError as error:
            assert "must not be negative" in str(error)
            print("ok")
        """, JAX_PLATFORMS="cpu")
    assert done.stdout == "ok\n", done.stderr


def test_a_cluster_that_does_not_start_says_why(monkeypatch, tmp_path):
    fake = tmp_path / "landbridge"
    fake.write_text("#!/bin/sh\necho 'landbridge: no plugin' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("LANDBRIDGE", str(fake))
    with pytest.raises(local.ClusterError, match="no plugin"):
        with local.cluster():
            pass


def test_cluster_sets_and_restores_the_environment(tmp_path):
    fake = tmp_path / "landbridge"
    fake.write_text(f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
[ "$1" = up ] && echo '{{"address": "grpc://h:1", "state": "/s", "processes": [{{"name": "proxy", "pid": 1, "log": "/l"}}]}}'
exit 0
""")
    fake.chmod(0o755)
    done = run("""
        import os, landbridge
        with landbridge.cluster(slices=2, arguments=["--port", "5"]) as c:
            assert os.environ["JAX_BACKEND_TARGET"] == "grpc://h:1" and c.processes["proxy"]["pid"] == 1
        assert "JAX_BACKEND_TARGET" not in os.environ
        print("ok")
        """, LANDBRIDGE=str(fake))
    assert done.stdout == "ok\n", done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("up --json") and "--slices 2" in calls[0] and calls[0].endswith("--port 5")
    assert calls[1] == "down --state /s"


def test_addresses_of_targets():
    assert connecting.host_and_port("grpc://h:29000") == ("h", 29000)
    assert connecting.host_and_port("grpc://[::1]:29000") == ("::1", 29000)
    for other in ("grpc://unix:/tmp/x", "grpc://dns:///h:1", "grpc://h"):
        assert connecting.host_and_port(other) is None


def test_hints():
    assert "is the cluster up?" in connecting.hint("UNAVAILABLE: ... Connection refused")
    for text in ("Failed parsing HTTP/2", "connection attempt timed out before receiving SETTINGS frame", "Socket closed"):
        assert "no Landbridge proxy" in connecting.hint(text)
    assert connecting.hint("UNAVAILABLE: this proxy has no devices yet: ... Connection refused") == ""
    assert connecting.hint("something else") == ""


def test_waiting_is_said_aloud(monkeypatch, caplog):
    monkeypatch.setattr(connecting, "SAY_AFTER_S", 0.01)
    said = threading.Event()
    stock = connecting.logger.warning
    monkeypatch.setattr(connecting.logger, "warning", lambda *args: (stock(*args), said.set()))
    with connecting.said_aloud("grpc://127.0.0.1:1", 120):
        assert said.wait(120)
    assert ("waiting for a Landbridge proxy at grpc://127.0.0.1:1 (nothing listens there (connection refused)); "
            "gives up after 120 s") in caplog.text


def test_each_client_has_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.delenv(shared_folder.DIRECTORY, raising=False)
    assert shared_folder.take() is None
    monkeypatch.setenv(shared_folder.DIRECTORY, str(tmp_path))
    first = shared_folder.take()
    assert os.environ[shared_folder.DIRECTORY] == str(tmp_path / first) and (tmp_path / first).is_dir()
    second = shared_folder.take()           # as a child process that inherits the variable
    assert second != first and (tmp_path / second).is_dir()
    shared_folder.give_back(second)
    assert os.environ[shared_folder.DIRECTORY] == str(tmp_path) and not (tmp_path / second).exists()
    monkeypatch.setenv(shared_folder.DIRECTORY, str(tmp_path / "none"))
    with pytest.raises(shared_folder.SharedFolderError, match="--shared_transfer_directory"):
        shared_folder.take()
