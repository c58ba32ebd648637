"""Sets of programs whose results must be those of plain JAX: run in a process of their own, once by plain JAX on the
CPU and once against a cluster. A file of programs ends in `main(SETS)` and is called as

    FILE OUT.npz SET...     results of the sets' programs, by name; an error's text where a program failed

A set is a function that yields (name, program, arguments), and may yield a fourth: what to say of the compiled
program's text. Inputs are made by numpy, so that both get the same bits.
"""

import os
import re
import subprocess
import sys

import jax
import numpy as np


def main(sets):
    jax.config.update("jax_enable_x64", True)
    found, targets = {}, set()
    for name in sys.argv[2:]:
        for case, program, args, *of_text in sets[name]():
            key = f"{name}/{case}"
            try:
                if hasattr(program, "lower"):
                    lowered = program.lower(*args)
                    targets.update(re.findall(r"custom_call @(\w+)", lowered.as_text()))
                    for question in of_text:
                        found[f"{key}/text"] = np.asarray(question(lowered.compile().as_text()))
                for i, leaf in enumerate(jax.tree.leaves(program(*args))):
                    value = np.asarray(leaf)
                    # numpy keeps no file of the types that it does not know: their bits then.
                    found[f"{key}/{i}"] = value if value.dtype.isbuiltin else value.view(f"u{value.dtype.itemsize}")
            except Exception as error:  # noqa: BLE001  the test shows it
                found[f"{key}/error"] = np.asarray(repr(error)[:2000])
    found["targets"] = np.asarray(sorted(targets))
    np.savez(sys.argv[1], **found)


def results(script, env, folder, *sets):
    out = folder / "results.npz"
    done = subprocess.run([sys.executable, script, out, *sets], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return dict(np.load(out))


def plain_results(script, folder, devices, *sets):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_"))}
    env.update(JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
               PJRT_NPROC=str(2 * devices))
    return results(script, env, folder, *sets)


def cases_of(found, *sets):
    return sorted({k.rsplit("/", 1)[0] for k in found if k.startswith(tuple(f"{name}/" for name in sets))})


def compare(plain, found, case):
    """Floating-point numbers within 64 units in the last place of the largest one; all else exactly."""
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
