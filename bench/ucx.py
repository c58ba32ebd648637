#!/usr/bin/env python3
"""Our data plane beside UCX's own benchmark (`ucx_perftest`, Debian's ucx-utils), in turns: gets of 64 B to 256 MiB.

    .venv/bin/python bench/ucx.py [--rounds 3] > results.jsonl

Both move bytes from the memory of one process into that of another: ours is a pull (`dataplane_benchmark`), one at a time,
UCX's its `ucp_get`, and for large ones its `tag_bw` (many at a time), with error handling on, which is what any runtime that
outlives a dead peer must use (UCX then falls back to TCP also inside one host); `tag_bw` without it as well. UCX runs over TCP
and over what it has inside one host, blocking (`-E sleep`) and polling; ours blocks. UCX moves one buffer again and again, which
stays in the processor's cache up to some MiB. One JSON line per test, mode and size with the medians; `speed_ratio` above 1:
ours is quicker. Skips cleanly where ucx_perftest is absent.
"""
import argparse
import itertools
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ROOT / "build" / "release" / "bench" / "dataplane_benchmark"
# Our mode and the transports that UCX may use for the same.
MODES = {"tcp": "tcp", "auto": "tcp,sm,cma"}
# Bytes -> gets.
SIZES = {64: 2000, 4096: 2000, 64 << 10: 1000, 1 << 20: 200, 4 << 20: 100, 64 << 20: 10, 256 << 20: 4}
# UCX's tests: name, with error handling, from which size on.
TESTS = (("ucp_get", True, 0), ("tag_bw", True, 1 << 20), ("tag_bw", False, 1 << 20))


def listening(port):
    """Whether somebody listens there; said by the kernel, since ucx_perftest takes the first connection for its peer."""
    wanted = f":{port:04X}"
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A"
               for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])


def ucx(test, safe, transports, wait, size, gets):
    """Microseconds of one move; None: it failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "UCX_TLS": transports, "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "error"}
    command = ["ucx_perftest", "-t", test, "-s", str(size), "-n", str(gets), "-w", str(max(2, gets // 10)), "-E", wait,
               "-f", "-v", "-p", str(port)]
    if safe:
        command.append("-e")
    if wait == "sleep":
        command.append("-I")
    server = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not listening(port):
            if server.poll() is not None or time.monotonic() > end:
                return None
            os.sched_yield()
        done = subprocess.run([*command, "127.0.0.1"], env=env, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None
    finally:
        server.kill()
        server.wait()
    # iterations, then percentile, average and overall latency in microseconds
    rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    return float(rows[-1][3]) if done.returncode == 0 and rows else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if shutil.which("ucx_perftest") is None:
        print(json.dumps({"bench": "ucx", "skipped": "there is no ucx_perftest; apt-get install ucx-utils"}))
        return
    subprocess.run([ROOT / "tools" / "build.sh", "dataplane_benchmark"], check=True, stdout=sys.stderr)
    ours, theirs = {}, {}
    for _ in range(args.rounds):
        out = subprocess.run([OURS, "--rounds", "1", "--no-beside"], check=True, capture_output=True, text=True).stdout
        for line in map(json.loads, out.splitlines()):
            if line["bench"] == "dataplane_pull" and line["mode"] in MODES and line["wake"] == "block":
                ours.setdefault((line["mode"], line["bytes"]), []).append(line["p50_us"])
        for (test, safe, smallest), mode, wait in itertools.product(TESTS, MODES, ("sleep", "poll")):
            for size, moves in SIZES.items():
                if size >= smallest:
                    took = ucx(test, safe, MODES[mode], wait, size, moves)
                    theirs.setdefault((test, safe, mode, wait, size), []).append(took)
    for (test, safe, mode, wait, size), samples in theirs.items():
        samples = [s for s in samples if s is not None]
        if (mode, size) not in ours:
            continue
        mine = statistics.median(ours[mode, size])
        line = {"bench": "ucx", "ucx_test": test, "ucx_error_handling": safe, "mode": mode, "ucx_wait": wait, "bytes": size,
                "landbridge_us": round(mine, 1)}
        if samples:
            ucx_us = statistics.median(samples)
            line.update(ucx_us=round(ucx_us, 1), speed_ratio=round(ucx_us / mine, 2),
                        landbridge_gb_per_s=round(size / mine / 1e3, 2), ucx_gb_per_s=round(size / ucx_us / 1e3, 2))
        else:
            line["ucx"] = "failed in this mode"
        line["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
