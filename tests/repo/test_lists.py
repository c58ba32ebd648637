"""What the Makefile and the tools name must exist, and be all there is: a test program that is in no sanitizer's list, or
a patch that fits no longer, would be missed by nobody.
"""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def rooms_with_tests():
    """Names of the rooms that have a test program: `lb_room(NAME` beside some `*_test.cc`."""
    for file in ROOT.glob("src/**/CMakeLists.txt"):
        if any(file.parent.glob("*_test.cc")):
            yield re.search(r"lb_room\((\w+)", file.read_text()).group(1) + "_test"


def listed(variable):
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    return set(re.search(rf"^{variable} \?= (.*)$", text, re.MULTILINE).group(1).split())


def test_address_sanitizer_runs_every_test_program():
    assert listed("ASAN_TESTS") == set(rooms_with_tests())


def test_thread_sanitizer_runs_test_programs():
    assert listed("TSAN_TESTS") < set(rooms_with_tests())


@pytest.mark.parametrize("patch", sorted(ROOT.glob("tests/seeded_bugs/*.patch")), ids=lambda patch: patch.stem)
def test_seeded_bugs_fit_the_sources(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
