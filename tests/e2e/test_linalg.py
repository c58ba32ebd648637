"""Linear algebra and other custom calls of JAX's CPU lowering: the values of plain JAX, by jaxlib's own handlers."""

import os
import pathlib
import subprocess
import sys

import linalg_programs
import numpy as np
import pytest
from conftest import fresh_cluster

PROGRAMS = pathlib.Path(linalg_programs.__file__)


def results(env, folder, *sets):
    out = folder / "results.npz"
    done = subprocess.run([sys.executable, PROGRAMS, out, *sets], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return dict(np.load(out))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_"))}
    env.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4", PJRT_NPROC="8")
    return results(env, tmp_path_factory.mktemp("plain"), *linalg_programs.SETS)


@pytest.fixture(scope="module")
def found(cluster, tmp_path_factory):
    return results(cluster.env(), tmp_path_factory.mktemp("cluster"), *linalg_programs.SETS)


def compare(plain, found, case):
    keys = [k for k in plain if k.startswith(case + "/")]
    assert keys and f"{case}/error" not in plain, plain.get(f"{case}/error")
    assert f"{case}/error" not in found, found[f"{case}/error"]
    for key in keys:
        want, got = plain[key], found[key]
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind in "fc":
            scale = max(1.0, np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0))
            tolerance = 64 * np.finfo(want.dtype).eps * scale
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance, err_msg=key)
        else:
            np.testing.assert_array_equal(got, want, err_msg=key)


@pytest.mark.parametrize("case", linalg_programs.FAMILIES)
def test_family(plain, found, case):
    compare(plain, found, f"families/{case}")


@pytest.mark.parametrize("name", ["forms", "sharded", "divided"])
def test_way_to_call(plain, found, name):
    cases = {k.rsplit("/", 1)[0] for k in plain if k.startswith(name + "/")}
    assert len(cases) > 8
    for case in sorted(cases):
        compare(plain, found, case)


def test_over_several_workers(plain, tmp_path):
    with fresh_cluster(slices=1, workers=2, devices=2) as made:
        found = results(made.env(), tmp_path, "sharded", "divided")
        for case in sorted({k.rsplit("/", 1)[0] for k in plain if k.startswith(("sharded/", "divided/"))}):
            compare(plain, found, case)


def test_worker_without_python():
    with fresh_cluster("--worker-arg=--python=/no/such/python", slices=1) as made:
        done = made.script("""
            import jax, jax.numpy as jnp, numpy as np
            for _ in range(2):
                try:
                    jax.block_until_ready(jax.jit(jnp.linalg.cholesky)(np.eye(3, dtype=np.float32)))
                    raise SystemExit("no error")
                except jax.errors.JaxRuntimeError as error:
                    print(error)
            assert float(jax.jit(lambda v: v + 1)(1.0)) == 2.0
        """)
        for part in ("UNIMPLEMENTED", "'lapack_spotrf_ffi'", "/no/such/python", "pip install jaxlib scipy", "--python=PATH"):
            assert part in done.stdout, done.stdout
        assert not any(word in done.stdout for word in ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED"))
        pids = made.pids()
        made.refresh()
        assert made.pids() == pids


def test_other_programs_load_while_python_starts(tmp_path):
    """Its interpreter answers only when the other program has ended."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    python.write_text(f'#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with fresh_cluster(f"--worker-arg=--python={python}", slices=1) as made:
        made.script(f"""
            import jax, jax.numpy as jnp, numpy as np, pathlib
            x = np.eye(3, dtype=np.float32) * 4
            waiting = [jax.jit(lambda v, k=k: jnp.linalg.cholesky(v) + k)(x) for k in range(3)]
            np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(x)), x + 1)
            assert not any(w.is_ready() for w in waiting)
            pathlib.Path("{gate}").touch()
            for k, w in enumerate(waiting):
                np.testing.assert_array_equal(np.asarray(w), np.eye(3, dtype=np.float32) * 2 + k)
        """)


def test_every_target_of_jaxlib_was_called(plain):
    from jaxlib.cpu import _lapack, _sparse

    wanted = {*_lapack.registrations(), *_sparse.registrations(), "dce_sink"}
    assert wanted - set(plain["targets"]) == set()
