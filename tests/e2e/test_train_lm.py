"""The main job: train_lm through Landbridge and on plain JAX give the same losses."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "train_lm.py"


def train(env, *args):
    done = subprocess.run([sys.executable, TRAIN, "--preset", "tiny", "--json", *args], env=env, capture_output=True,
                          text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def plain_env():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_"))}
    env.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8", PJRT_NPROC="16")
    return env


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["pipeline", "fsdp"])
def test_same_losses_as_plain_jax(cluster, mode):
    ours = train(cluster.env(), "--mode", mode, "--steps", "4")
    plain = train(plain_env(), "--mode", mode, "--steps", "4")
    assert len(ours["losses"]) == 4
    for a, b in zip(ours["losses"], plain["losses"]):
        assert abs(a - b) <= 1e-5 * abs(b), (ours["losses"], plain["losses"])
    assert ours["losses"][-1] < ours["losses"][0]


@pytest.mark.timeout(900)
def test_checkpoint_and_resume(cluster, tmp_path):
    whole = train(cluster.env(), "--steps", "4")
    train(cluster.env(), "--steps", "2", "--checkpoint_dir", str(tmp_path), "--checkpoint_every", "2")
    rest = train(cluster.env(), "--steps", "4", "--checkpoint_dir", str(tmp_path), "--checkpoint_every", "2")
    assert rest["losses"] == whole["losses"][2:]
