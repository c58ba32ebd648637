#!/usr/bin/env python3
"""Runs tests of libraries that users bring (optax, flax) on plain JAX and through Landbridge: what passes there must pass here.

    .venv/bin/python tests/libraries/run.py [--only optax,nnx,linen] [--slices 1] [--devices-per-worker 8] [--json FILE]

The tests are those of the versions that .venv has: optax's come with it, flax's with its source archive, which pip fetches
into build/libraries. Nothing of them is stored in the project. Prints a line per library and every test that passes on plain
JAX only; exits with 1 if there is one that `KNOWN` does not explain.
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "build" / "libraries"

# What needs no packages beyond .venv's, and is about arrays: files of pure Python (traversals, pickles, summaries) tell
# nothing about a backend.
SAMPLES = {
    "optax": ["_src/alias_test.py", "_src/base_test.py", "_src/combine_test.py", "_src/factorized_test.py",
              "_src/linear_algebra_test.py", "_src/lookahead_test.py", "_src/numerics_test.py", "_src/sharding_test.py",
              "_src/update_test.py", "contrib/_muon_test.py", "contrib/_sam_test.py",
              "losses/_classification_test.py", "losses/_regression_test.py", "projections/_projections_test.py",
              "schedules/_schedule_test.py", "transforms/_accumulation_test.py", "transforms/_clipping_test.py"],
    "nnx": ["ema_test.py", "integration_test.py", "metrics_test.py", "module_test.py", "mutable_array_test.py",
            "nn/attention_test.py", "nn/conv_test.py", "nn/embed_test.py", "nn/linear_test.py", "nn/lora_test.py",
            "nn/normalization_test.py", "nn/recurrent_test.py", "nn/stochastic_test.py", "optimizer_test.py",
            "partitioning_test.py", "rngs_test.py", "spmd_test.py", "transforms_test.py"],
    "linen": ["linen_activation_test.py", "linen_attention_test.py", "linen_combinators_test.py", "linen_dtypes_test.py",
              "linen_linear_test.py", "linen_meta_test.py", "linen_module_test.py", "linen_recurrent_test.py",
              "linen_test.py", "linen_transforms_test.py", "initializers_test.py", "partitioning_test.py"],
}

# Test name (its end) -> why it passes on plain JAX only.
KNOWN = {}


def flax_tests():
    """The tests/ folder of flax's source archive, fetched once."""
    version = importlib.metadata.version("flax")
    folder = SOURCES / f"flax-{version}"
    if not folder.exists():
        SOURCES.mkdir(parents=True, exist_ok=True)
        print(f"fetching the source archive of flax {version}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                        "--no-binary", "flax", "-d", SOURCES, f"flax=={version}"], check=True)
        with tarfile.open(SOURCES / f"flax-{version}.tar.gz") as archive:
            archive.extractall(SOURCES, filter="data")
    return folder / "tests"


def files_of(library):
    if library == "optax":
        folder = pathlib.Path(importlib.metadata.distribution("optax").locate_file("optax"))
    else:
        folder = flax_tests() / library
    return [folder / name for name in SAMPLES[library]]


def outcomes(command, environment, files, log):
    """Runs pytest over `files`; name of a test -> passed, skipped, failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.xml")
        # Not this project's options and plugins; -n: a file that kills its process costs the others nothing.
        options = ["-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider", "-c", os.devnull,
                   "--timeout", "600", "--tb", "short", f"--junitxml={report}", "-o", "junit_family=xunit1", "--rootdir", "/"]
        with open(log, "w") as out:
            subprocess.run([*command, sys.executable, *options, *map(str, files)], env={**os.environ, **environment},
                           cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            found[f"{pathlib.Path(case.get('file') or case.get('classname')).name}::{case.get('name')}"] = outcome
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SAMPLES), help="comma list of " + ", ".join(SAMPLES))
    parser.add_argument("--slices", type=int, default=1)
    parser.add_argument("--workers-per-slice", type=int, default=1)
    parser.add_argument("--devices-per-worker", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path, help="where every test's two outcomes go")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(SAMPLES):
        parser.error(f"--only: no library {', '.join(sorted(unknown))}; there are {', '.join(SAMPLES)}")

    devices = args.slices * args.workers_per_slice * args.devices_per_worker
    native = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    cluster = [ROOT / "landbridge", "run", "--slices", str(args.slices), "--workers-per-slice", str(args.workers_per_slice),
               "--devices-per-worker", str(args.devices_per_worker), "--"]
    logs = SOURCES / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    everything, unexplained = {}, 0
    for library in chosen:
        files = files_of(library)
        there = outcomes([], native, files, logs / f"{library}-plain.log")
        here = outcomes(cluster, {}, files, logs / f"{library}-landbridge.log")
        everything[library] = {name: [there[name], here.get(name, "did not run")] for name in there}
        passed = [name for name, outcome in there.items() if outcome == "passed"]
        worse = [name for name in passed if here.get(name) != "passed"]
        print(f"{library}: {len(there)} tests, {len(passed)} pass on plain JAX, {len(passed) - len(worse)} of them here",
              flush=True)
        for name in worse:
            why = next((reason for end, reason in KNOWN.items() if name.endswith(end)), None)
            unexplained += why is None
            print(f"  {name}: {here.get(name, 'did not run')}{'' if why is None else ': ' + why}", flush=True)
        if not passed:
            sys.exit(f"{library}: nothing passes on plain JAX either; see {logs / f'{library}-plain.log'}")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1) + "\n")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
