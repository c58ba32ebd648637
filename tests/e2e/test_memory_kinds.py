"""`device`, `pinned_host` and `unpinned_host` as in plain JAX on the CPU: moves, inputs, outputs, moves inside programs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import fresh_cluster

PROGRAMS = pathlib.Path(__file__).with_name("memory_programs.py")


def results(env):
    done = subprocess.run([sys.executable, PROGRAMS], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_"))}
    found = results({**env, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert not [name for name, value in found.items() if isinstance(value, str)], found
    return found


def different(plain, found):
    assert plain.keys() == found.keys()
    return {name: (plain[name], found[name]) for name in plain if plain[name] != found[name]}


def test_same_as_plain_jax(cluster, plain):
    assert plain["kinds"] == ["device", "pinned_host", "unpinned_host"] and len(plain) > 100
    assert different(plain, results(cluster.env())) == {}


def test_over_several_workers(plain):
    with fresh_cluster(slices=1, workers=2, devices=2) as made:
        assert different(plain, results(made.env())) == {}
