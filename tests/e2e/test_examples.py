"""The examples give the same numbers through Landbridge and on plain JAX."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def plain_env():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_"))}
    env.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8", PJRT_NPROC="24")
    return env


def run(name, env, *args):
    done = subprocess.run([sys.executable, ROOT / "examples" / name, "--json", *args], env=env, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name, key, args", [
    ("pipeline_gpipe.py", "losses", ("--steps", "3", "--micro-batches", "6")),
    ("pipeline_1f1b.py", "losses", ("--steps", "3", "--micro-batches", "6")),
    ("rl_loop.py", "rewards", ("--steps", "6")),
])
def test_same_numbers_as_plain_jax(cluster, name, key, args):
    ours, plain = run(name, cluster.env(), *args), run(name, plain_env(), *args)
    assert len(ours[key]) == len(plain[key]) >= 3
    for a, b in zip(ours[key], plain[key]):
        assert abs(a - b) <= 1e-5 * max(abs(b), 1e-3), (ours[key], plain[key])


@pytest.mark.timeout(600)
def test_both_schedules_compute_the_same(cluster):
    args = ("--steps", "3", "--micro-batches", "6")
    gpipe, one_f = (run(f"pipeline_{name}.py", cluster.env(), *args)["losses"] for name in ("gpipe", "1f1b"))
    assert gpipe == one_f
    assert gpipe[-1] < gpipe[0]
