"""Linear algebra and other custom calls of JAX's CPU lowering: the values of plain JAX, by jaxlib's own handlers."""

import pathlib
import sys

import linalg_programs
import pytest
from conftest import fresh_cluster
from program_sets import cases_of, compare, plain_results, results

PROGRAMS = pathlib.Path(linalg_programs.__file__)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return plain_results(PROGRAMS, tmp_path_factory.mktemp("plain"), 4, *linalg_programs.SETS)


@pytest.fixture(scope="module")
def found(cluster, tmp_path_factory):
    return results(PROGRAMS, cluster.env(), tmp_path_factory.mktemp("cluster"), *linalg_programs.SETS)


@pytest.mark.parametrize("case", linalg_programs.FAMILIES)
def test_family(plain, found, case):
    compare(plain, found, f"families/{case}")


@pytest.mark.parametrize("name", ["forms", "sharded", "divided"])
def test_way_to_call(plain, found, name):
    cases = cases_of(plain, name)
    assert len(cases) > 8
    for case in cases:
        compare(plain, found, case)


def test_over_several_workers(plain, tmp_path):
    with fresh_cluster(slices=1, workers=2, devices=2) as made:
        found = results(PROGRAMS, made.env(), tmp_path, "sharded", "divided")
        for case in cases_of(plain, "sharded", "divided"):
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
