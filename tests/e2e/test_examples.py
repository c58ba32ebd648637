"""The examples give the same numbers through Landbridge and on plain JAX."""

import functools
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


STEPS = ("--steps", "3", "--micro-batches", "6")


@pytest.fixture(scope="module")
def both(cluster):
    """What an example says through Landbridge and on plain JAX."""
    @functools.cache
    def run(name, *args):
        processes = [subprocess.Popen([sys.executable, ROOT / "examples" / name, "--json", *args], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                     for env in (cluster.env(), plain_env())]
        found = []
        for process in processes:
            out, err = process.communicate(timeout=500)
            assert process.returncode == 0, out[-3000:] + err[-6000:]
            found.append(json.loads(out.strip().splitlines()[-1]))
        return found
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name, key, args", [
    ("pipeline_gpipe.py", "losses", STEPS),
    ("pipeline_1f1b.py", "losses", STEPS),
    ("rl_loop.py", "rewards", ("--steps", "6")),
])
def test_same_numbers_as_plain_jax(both, name, key, args):
    ours, plain = both(name, *args)
    assert len(ours[key]) == len(plain[key]) >= 3
    for a, b in zip(ours[key], plain[key]):
        assert abs(a - b) <= 1e-5 * max(abs(b), 1e-3), (ours[key], plain[key])


@pytest.mark.timeout(600)
def test_both_schedules_compute_the_same(both):
    gpipe, one_f = (both(f"pipeline_{name}.py", *STEPS)[0]["losses"] for name in ("gpipe", "1f1b"))
    assert gpipe == one_f
    assert gpipe[-1] < gpipe[0]
