"""Clients of every supported JAX on one server, without and with the landbridge package; and both CPU plugins.

Environments of other versions lie in build/clients/VERSION (tools/client_env.sh). The oldest is always there in `make
test`; the others are tested when they are there.
"""

import functools
import json
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import tomllib

import jaxlib
import pytest

from conftest import ROOT, fresh_cluster

OLDEST, NEWEST = "0.8.2", jaxlib.__version__
VERSIONS = [OLDEST, "0.9.2", "0.10.0", NEWEST]
SCRIPT = ROOT / "tests" / "e2e" / "client_programs.py"
# What a patch says of versions that it cannot work with. Everything else is installed everywhere.
OF_0_10 = {"device_put", "callbacks", "memory_stats", "program_text", "serialization", "buffer_callback", "newer_programs",
           "partitioning", "deletion"}
LEFT_OUT = {"0.8.2": OF_0_10, "0.9.2": OF_0_10}


def python_of(version):
    if version == NEWEST:
        return sys.executable
    python = ROOT / "build" / "clients" / version / "bin" / "python"
    if not python.exists():
        told = f"there is no client of JAX {version}; tools/client_env.sh {version} makes one"
        assert version != OLDEST, told
        pytest.skip(told)
    return python


@functools.cache
def installed_package():
    """sys.path entries with the package of this checkout as pip would install it: JAX finds plugins by metadata."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lb-package-"))
    info = folder / "landbridge-0.dist-info"
    info.mkdir()
    project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: landbridge\nVersion: {project['version']}\n")
    info.joinpath("entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()))
    return f"{ROOT / 'python'}:{folder}"


def run(cluster, version, *args):
    env = cluster.env(PYTHONPATH=installed_package())
    if "--stock" in args:
        # .venv has the package; all that it does is turned off there.
        env = {**cluster.env(LANDBRIDGE_PATCHES="0", LANDBRIDGE_MALLOPT="0"), "PYTHONPATH": ""}
    done = subprocess.run([python_of(version), SCRIPT, *args], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-6000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["jax"] == version
    return report


def assert_all_passed(report, least=35):
    assert report["failed"] == {}, "\n".join(f"{name}: {error}" for name, error in report["failed"].items())
    assert len(report["passed"]) >= least


@pytest.mark.parametrize("version", VERSIONS)
def test_with_the_package(cluster, version):
    report = run(cluster, version)
    assert_all_passed(report)
    assert {"strides_that_are_not_positive", "programs_without_lines"} <= set(report["passed"])
    left_out = {name for name, state in report["patches"].items() if state != "installed"}
    assert left_out == LEFT_OUT.get(version, set()), report["patches"]
    assert ("partitionings_stay_on_the_cluster" in report["passed"]) == ("device_put" not in left_out)
    for name in left_out:
        reason = f"patch '{name}' is left out: jaxlib {version} is not one"
        told = [text for text in report["warnings"] if reason in text]
        assert len(told) == 1, report["warnings"]


@pytest.mark.parametrize("version", VERSIONS)
def test_stock(cluster, version):
    """As with pathwaysutils alone."""
    report = run(cluster, version, "--stock")
    assert_all_passed(report)
    assert set(report["patches"].values()) <= {"off"}
    assert version == NEWEST or report["patches"] == {}     # the package is not even there


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_patches_stay_out_of_a_jax_that_they_do_not_know(cluster, version):
    report = run(cluster, version, "--unknown", "jit_scalar", "sharded_program", "strides_of_numpy", "pytrees")
    assert_all_passed(report, least=4)
    for name, function in (("strides", "batched_device_put"), ("locations", "source_info_to_location")):
        assert report["patches"][name] == f"{function} takes ['everything', 'more']"
        told = [text for text in report["warnings"] if f"patch '{name}' is left out: {function} takes" in text]
        assert len(told) == 1, report["warnings"]


def test_the_other_plugin():
    """An older CPU plugin: PJRT API 0.106, StableHLO 1.16."""
    plugin = pathlib.Path(sysconfig.get_paths()["platlib"]) / "fastatomstruct_xla_cpu" / "libpjrt_cpu.so"
    assert plugin.exists(), f"{plugin} is missing; python/requirements-test.txt has its package"
    with fresh_cluster("--pjrt_plugin", str(plugin)) as other:
        assert_all_passed(run(other, NEWEST))
