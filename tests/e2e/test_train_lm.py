"""The main job: train_lm through Landbridge and on plain JAX give the same losses."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "train_lm.py"


def start(env, *args):
    return subprocess.Popen([sys.executable, TRAIN, "--preset", "tiny", "--json", *args], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def result(process):
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, out[-3000:] + err[-6000:]
    return json.loads(out.strip().splitlines()[-1])


def plain_env():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_"))}
    env.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8", PJRT_NPROC="16")
    return env


@pytest.fixture(scope="module")
def whole(cluster):
    """{mode: (through Landbridge, on plain JAX)}: 4 steps."""
    @functools.cache
    def run(mode):
        processes = [start(env, "--mode", mode, "--steps", "4") for env in (cluster.env(), plain_env())]
        return [result(p) for p in processes]
    return run


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["pipeline", "fsdp"])
def test_same_losses_as_plain_jax(whole, mode):
    ours, plain = whole(mode)
    assert len(ours["losses"]) == 4
    for a, b in zip(ours["losses"], plain["losses"]):
        assert abs(a - b) <= 1e-5 * abs(b), (ours["losses"], plain["losses"])
    assert ours["losses"][-1] < ours["losses"][0]


@pytest.mark.timeout(900)
def test_checkpoint_and_resume(cluster, whole, tmp_path):
    options = ("--mode", "pipeline", "--checkpoint_dir", str(tmp_path), "--checkpoint_every", "2")
    result(start(cluster.env(), "--steps", "2", *options))
    rest = result(start(cluster.env(), "--steps", "4", *options))
    assert rest["losses"] == whole("pipeline")[0]["losses"][2:]
