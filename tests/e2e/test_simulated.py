"""Simulated workers: 256 devices on one machine, over the real leases and control streams."""

import resource
import subprocess
import time

import pytest

from admin import ask
from conftest import ROOT, fresh_cluster

SLICES = 64
PROGRAM = ROOT / "build/release/bin/landbridge-simulated-workers"
# All 64 share what processors this machine has left: a slow moment is no death.
PATIENT = [arg for kind in ("--proxy-arg", "--worker-arg", "--rm-arg") for arg in (kind, "--lease_ms=20000")]

PRELUDE = """
import numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
def rows(s):
    return NamedSharding(Mesh(np.array(devices[4 * s:4 * s + 4]), ("x",)), P("x"))
"""


@pytest.fixture(scope="module")
def cluster():
    with fresh_cluster("--simulated", *PATIENT, slices=SLICES) as made:
        yield made


def test_devices_programs_and_moves(cluster):
    cluster.script(PRELUDE + """
assert len(devices) == 256
assert [d.slice_index for d in devices] == [i // 4 for i in range(256)]
x = np.arange(32, dtype=np.float32).reshape(8, 4)
a = [jax.device_put(x, rows(s)) for s in range(64)]
f = jax.jit(lambda v: v * 2 + 1)
y = jax.block_until_ready([f(v) for v in a])                 # one program on every slice
assert all(v.shape == (8, 4) and v.sharding == rows(s) for s, v in enumerate(y))
for s, v in enumerate(a):
    np.testing.assert_array_equal(np.asarray(v), x)           # uploads have their values
columns = NamedSharding(Mesh(np.array(devices[8:12]), ("x",)), P(None, "x"))
np.testing.assert_array_equal(np.asarray(jax.device_put(a[63], columns)), x)
jax.device_put(y[0], rows(5)).block_until_ready()             # results move too, without values
try:
    np.asarray(y[0])
    raise SystemExit("a result of a simulated program has values")
except jax.errors.JaxRuntimeError as e:
    assert "UNIMPLEMENTED" in str(e) and "simulated-0 is simulated" in str(e), e
big = jax.device_put(np.ones((1024, 1024), np.float32), rows(7))
big.block_until_ready()
del a, y, big
""")
    counts = ask(cluster.processes["simulated-workers"]["address"])["counts"]
    assert counts["serving"] == SLICES and counts["anomalies"] == 0, counts


def test_a_killed_worker_loses_its_arrays_only(cluster):
    client = cluster.start(PRELUDE + """
x = np.arange(8, dtype=np.float32)
a, b = jax.device_put(x, rows(3)), jax.device_put(x, rows(4))
jax.block_until_ready([a, b])
print("up", flush=True)
input()
try:
    (a + 1).block_until_ready()
    print("no error")
except jax.errors.JaxRuntimeError as e:
    print("DATA_LOSS" in str(e) and "simulated-3" in str(e), e)
np.testing.assert_array_equal(np.asarray(b), x)
c = jax.device_put(x, rows(3))                                # its next life serves the same devices
np.testing.assert_array_equal(np.asarray(c), x)
""")
    assert client.stdout.readline() == "up\n"
    address = cluster.processes["simulated-workers"]["address"]
    before = cluster.status()["proxy"]["workers_lost"]
    ask(address, "kill", worker="simulated-3", restart=True)
    until = time.monotonic() + 90
    while True:
        proxy = cluster.status()["proxy"]
        if proxy["workers_lost"] > before and all(w["up"] for w in proxy["slices"][3]["workers"]):
            break
        assert time.monotonic() < until
        time.sleep(0.05)
    out, err = client.communicate("\n", timeout=240)
    assert client.returncode == 0, out + err
    assert out.startswith("True"), out


@pytest.mark.parametrize("flags, open_files, says", [
    (["--workers=5000"], None, "--workers is 5000, but must lie between 1 and 4096"),
    (["--workers=8", "--devices=0"], None, "--devices is 0, but must lie between 1 and 1024"),
    (["--workers=100"], 256, "simulating 100 workers needs 464 open files, but this process may have 256"),
])
def test_what_cannot_be_simulated_is_said_at_once(flags, open_files, says):
    def limit():
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    done = subprocess.run([PROGRAM, "--resource_manager_address=127.0.0.1:1", *flags], preexec_fn=limit, timeout=30,
                          capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert says in done.stderr + done.stdout
