"""The dependency rules between the rooms of src/ hold, and the check finds what breaks them."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_rooms


def test_the_code_obeys_the_table():
    assert check_rooms.violations() == []


def test_every_room_is_in_the_table_and_the_table_has_no_others():
    rooms = {p.name for p in (ROOT / "src").iterdir() if p.is_dir() and any(p.iterdir())}
    assert rooms <= set(check_rooms.RULES), rooms - set(check_rooms.RULES)


def test_violations_are_found(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("base/a.h", '#include "pjrt/client.h"\n')
    write("controller/core.cc", '#include <mutex>\n#include "base/status.h"\n  LogInfo("x");\n')
    write("controller/core_test.cc", '#include <mutex>\n#include "worker/x.h"\n')
    write("pjrt/client.h", '#include "base/status.h"\n// #include "worker/x.h"\n')
    write("attic/x.h", "")
    found = check_rooms.violations(src=tmp_path)
    assert found == [
        "src/attic is not in the table of tools/check_rooms.py",
        "src/base/a.h includes pjrt/: base may use only nothing",
        "src/controller/core.cc includes <mutex>: a pure state machine holds no clock, socket, thread, lock or log",
        "src/controller/core.cc logs: a pure state machine tells its sink instead",
    ]
