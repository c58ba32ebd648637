"""Workers whose devices have memory of their own, on a machine that has none: a plugin that looks like one for GPUs
(src/testing/gpu_like_plugin.cc) with the CPU plugin behind it. Whether the real ones work is not told here
(docs/accelerators.md)."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import LANDBRIDGE, fresh_cluster

PROGRAMS = pathlib.Path(__file__).with_name("gpu_programs.py")
PLUGIN = LANDBRIDGE.resolve().parents[1] / "test_plugins" / "gpu_like_plugin.so"


@contextlib.contextmanager
def gpu_cluster(*args, gpus=2, **shape):
    import lammps_jax_pjrt_cpu

    added = {"LANDBRIDGE_TEST_CPU_PLUGIN": str(lammps_jax_pjrt_cpu.PLUGIN_PATH), "LANDBRIDGE_TEST_GPUS": str(gpus)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in added.items():
            patch.setenv(name, value)
        with fresh_cluster("--platform", "cuda", "--pjrt_plugin", str(PLUGIN), *args, devices=gpus, **shape) as made:
            yield made


def until(condition, cluster, name, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, cluster.log(name)[-4000:]
        time.sleep(0.05)


def findings(cluster):
    done = subprocess.run([sys.executable, PROGRAMS], env=cluster.env(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_common(found):
    assert found["wrong"] == []
    assert found["platform"] == "gpu" and found["kind"] == "Landbridge test GPU"
    assert found["memories"] == ["device", "pinned_host"]
    assert "UNIMPLEMENTED" in found["callback"] and "platform cuda do not have yet" in found["callback"]
    assert "UNIMPLEMENTED" in found["cholesky"] and "custom-call target" in found["cholesky"]


def test_two_slices_of_one_worker():
    with gpu_cluster(slices=2) as cluster:
        found = findings(cluster)
        check_common(found)
        assert found["devices"] == 4 and found["slices"] == 2
        assert "UNIMPLEMENTED" in found["over slices"] and "several slices" in found["over slices"]
        for name in ("worker-0-0", "worker-1-0"):
            log = cluster.log(name)
            assert "device memory is copied by way of the host" in log
            assert "1073741824 bytes each" in log  # as the plugin says


def test_slices_of_two_workers_that_make_one_client():
    """Their clients are one: each has its own devices and knows the others'. Programs over both run as the plugin runs them
    (this one: without collectives)."""
    with gpu_cluster(slices=2, workers=2) as cluster:
        found = findings(cluster)
        check_common(found)
        assert found["devices"] == 8 and found["slices"] == 2
        for s in (0, 1):
            for w in (0, 1):
                assert f"formed: process {w} of 2, 4 devices" in cluster.log(f"worker-{s}-{w}")
        assert "UNIMPLEMENTED" in found["over slices"] and "several slices" in found["over slices"]


def test_a_member_that_dies_ends_its_formation():
    """The others of its slice start again, too, since the plugins' clients are made by all together; nobody else does."""
    with gpu_cluster("--on-worker-loss", "restart", slices=2, workers=2, gpus=1) as cluster:
        before = cluster.pids()
        client = cluster.start("""
            import time, numpy as np, jax
            from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
            devices = jax.devices()
            over = [NamedSharding(Mesh(np.array(devices[i:i + 2]), ("d",)), P("d")) for i in (0, 2)]
            f = jax.jit(lambda v: v * 2 + 1)
            a, b = (jax.block_until_ready(f(jax.device_put(np.arange(8.0, dtype=np.float32), s))) for s in over)
            print(np.asarray(a).sum(), np.asarray(b).sum(), flush=True)
            input()
            try:
                jax.block_until_ready(f(a))
                print("not lost", flush=True)
            except Exception as error:
                print("lost" if "DATA_LOSS" in str(error) else error, flush=True)
            print(np.asarray(f(b)).sum(), flush=True)
            print(np.asarray(f(jax.device_put(np.arange(8.0, dtype=np.float32), over[0]))).sum(), flush=True)
        """)
        assert client.stdout.readline() == "64.0 64.0\n", client.stderr.read()
        os.kill(before["worker-0-1"], signal.SIGKILL)
        until(lambda: cluster.log("worker-0-0").count("formed: process 0 of 2") == 2, cluster, "worker-0-0")
        client.stdin.write("\n")
        client.stdin.flush()
        out, errors = client.communicate(timeout=240)
        assert out.split("\n")[:3] == ["lost", "136.0", "64.0"], out + errors
        cluster.refresh()
        after = cluster.pids()
        assert {n for n in before if before[n] != after[n]} == {"worker-0-0", "worker-0-1"}
        assert "another worker of this slice has started again" in cluster.log("worker-0-0")


def test_killed_worker_loses_its_arrays_only():
    with gpu_cluster("--on-worker-loss", "restart", slices=2, gpus=1) as cluster:
        out = cluster.script(f"""
            import os, signal, time, numpy as np, jax
            one, other = jax.devices()
            a, b = jax.device_put(np.arange(4.0, dtype=np.float32), one), jax.device_put(np.arange(5.0, dtype=np.float32), other)
            jax.block_until_ready([a, b])
            os.kill({cluster.pid("worker-0-0")}, signal.SIGKILL)
            try:
                jax.block_until_ready(jax.jit(lambda v: v + 1)(a))
                print("not lost")
            except Exception as error:
                print("lost" if "DATA_LOSS" in str(error) else error)
            print(np.asarray(b).sum(), np.asarray(jax.jit(lambda v: v * 2)(jax.device_put(np.ones(3, np.float32), one))).sum())
        """).stdout.split("\n")
        assert out[0] == "lost" and out[1] == "10.0 6.0", out


def test_no_device_is_named(tmp_path):
    import lammps_jax_pjrt_cpu

    env = dict(os.environ, LANDBRIDGE_TEST_CPU_PLUGIN=str(lammps_jax_pjrt_cpu.PLUGIN_PATH), LANDBRIDGE_TEST_GPUS="0")
    done = subprocess.run(
        [LANDBRIDGE.resolve().parent / "landbridge-server", "--resource_manager_address=127.0.0.1:9", "--server_port=0",
         "--devices=1", f"--pjrt_plugin={PLUGIN}"],
        env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no CUDA device can be used here: " in done.stderr and "nvidia-smi" in done.stderr, done.stderr


def test_wrong_plugin_options_are_named():
    server = LANDBRIDGE.resolve().parent / "landbridge-server"
    for flag, says in (("memory_fraction=half", "it takes a number"), ("visible_devices=0;1", "whole numbers"),
                       ("preallocate", "NAME=VALUE"), ("x:list=1", "the type is")):
        done = subprocess.run([server, "--resource_manager_address=127.0.0.1:9", "--devices=1", f"--pjrt_plugin={PLUGIN}",
                               f"--plugin_option={flag}"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and says in done.stderr and flag.split("=")[0] in done.stderr, done.stderr
