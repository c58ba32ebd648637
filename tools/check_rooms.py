#!/usr/bin/env python3
"""Checks which room (folder of src/) includes which: the table below is the architecture, the code must obey it.

    tools/check_rooms.py           exit code 1 and one line per violation
    tools/check_rooms.py --graph   what is included now, room by room

Files whose names mark them as tests, benchmarks or fuzzers may include more: whatever their room's shell does.
"""
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parents[1] / "src"
EVERYTHING = {"*"}

# room -> rooms that it may include, besides itself. `base` and generated messages under proto/ have no rooms of
# ours below them, so they are open to all who list them.
RULES = {
    "base": set(),
    "proto": set(),
    "testing": set(),
    "env": {"base"},
    "cluster": {"base", "env", "proto"},
    "pjrt": {"base", "proto"},
    "hlo": {"base", "proto"},
    "sharding": {"base", "proto"},
    "dataplane": {"base", "env"},
    "collectives": {"base", "dataplane", "hlo", "pjrt", "proto"},
    "custom_calls": {"base", "pjrt"},
    "compiler": {"base", "env", "collectives", "custom_calls", "pjrt", "hlo", "proto"},
    "worker": {"base", "env", "cluster", "pjrt", "hlo", "dataplane", "collectives", "custom_calls", "sharding",
               "compiler", "proto"},
    "controller": {"base", "sharding", "proto"},
    "resource_manager": {"base", "env", "cluster", "proto"},
    "frontdoor": {"base", "env", "controller", "sharding", "compiler", "dataplane", "proto"},
    "proxy": EVERYTHING,
    "cli": {"base", "env", "cluster"},
    "sim": EVERYTHING,
    "bin": EVERYTHING,
}

# Pure state machines: no clock, socket, thread, lock or log inside. file or folder -> nothing of these.
PURE = [
    "controller",
    "resource_manager/resource_manager_core.h", "resource_manager/resource_manager_core.cc",
    "resource_manager/members.cc", "resource_manager/leases.cc",
    "worker/worker_core.h", "worker/worker_core.cc", "worker/sequencer.h", "worker/sequencer.cc",
    "worker/sequencer_policies.cc", "worker/order_messages.h", "worker/log_follower.h", "worker/log_follower.cc",
    "worker/slice_sequencer.h", "worker/slice_sequencer.cc", "worker/spanner.h", "worker/spanner.cc",
    "worker/mail_gate.h", "worker/verdict_book.h", "worker/span_member.h", "worker/span_member.cc", "worker/span_orders.h", "worker/span_orders.cc",
    "worker/launch_args.h", "worker/launch_args.cc",
    "cluster/worker_lease.h", "cluster/worker_lease.cc", "cluster/holder_lease.h", "cluster/holder_lease.cc",
    "cluster/worker_stream.h", "cluster/worker_stream.cc",
    "dataplane/pull_core.h", "dataplane/pull_core.cc", "dataplane/serve_core.h", "dataplane/serve_core.cc",
]
IMPURE_INCLUDES = re.compile(
    r"<(thread|mutex|condition_variable|shared_mutex|chrono|random|sys/socket\.h|unistd\.h|uv\.h|pthread\.h|fstream)>"
    r"|\"(absl/synchronization/|absl/time/clock|grpc|ucp/|env/(loop|connection|process|file)\.h)")

# base/log.h itself is allowed for LB_CHECK.
LOGS = re.compile(r"\bLog(Debug|Info|Warning|Error|Line)\(")

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"][^>"]+[>"])', re.MULTILINE)
EXEMPT = re.compile(r"_(test|benchmark|fuzz)\.(cc|h)$|_test_util\.(cc|h)$|(^|/)testing/")


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def sources(src):
    return sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cc") and p.is_file())


def graph(src):
    """{room: {room it includes: [file]}} for production files."""
    found = {}
    for path in sources(src):
        relative = path.relative_to(src).as_posix()
        room = relative.split("/")[0]
        uses = found.setdefault(room, {})
        if EXEMPT.search(relative):
            continue
        for include in includes(path):
            target = include.strip('"<>').split("/")
            if include.startswith('"') and len(target) > 1 and target[0] in RULES and target[0] != room:
                uses.setdefault(target[0], []).append(relative)
    return found


def violations(src=SRC, rules=RULES, pure=PURE):
    found = []
    for room, uses in sorted(graph(src).items()):
        if room not in rules:
            found.append(f"src/{room} is not in the table of tools/check_rooms.py")
            continue
        allowed = rules[room]
        for target, files in sorted(uses.items()):
            if allowed != EVERYTHING and target not in allowed:
                found += [f"src/{file} includes {target}/: {room} may use only {', '.join(sorted(allowed)) or 'nothing'}"
                          for file in sorted(set(files))]
    for path in sources(src):
        relative = path.relative_to(src).as_posix()
        if EXEMPT.search(relative) or not any(relative == p or relative.startswith(p + "/") for p in pure):
            continue
        found += [f"src/{relative} includes {include}: a pure state machine holds no clock, socket, thread, lock or log"
                  for include in includes(path) if IMPURE_INCLUDES.match(include)]
        if LOGS.search(path.read_text(encoding="utf-8")):
            found.append(f"src/{relative} logs: a pure state machine tells its sink instead")
    return found


def main():
    if "--graph" in sys.argv[1:]:
        for room, uses in sorted(graph(SRC).items()):
            print(f"{room:18} {' '.join(sorted(uses)) or '-'}")
        return 0
    found = violations()
    for line in found:
        print(line)
    print(f"{len(found)} violation{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
