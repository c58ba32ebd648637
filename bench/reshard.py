#!/usr/bin/env python3
"""Resharding against its bounds, and against what a stock client does without help, in one run.

    .venv/bin/python bench/reshard.py [--mib 256] [--rounds 5] [--only rows_to_columns,sync] > results.jsonl

One JSON line per row. `bytes_bound` is what the receiving workers need and do not hold, counted element by element;
`bytes_moved` what they say they pulled from each other: the two must be equal. `ratio` is the time against that of one
array of as many bytes moved as a whole from one worker to another in the same run (`link_gb_s`); on one machine all
links share memory and processors, so that is the bound of their sum. `client_s` is the same move by the stock client
(fetch everything, upload it again), null where that does not work. `gloo_s` and `transfer_s` are the same move by what a stock
jaxlib has of its own (reshard_peers.py), a process per worker, and `gloo_ratio`, `transfer_ratio` our time against theirs (below
1: ours is quicker); left out where this jaxlib lacks them, null where they failed (says why on standard error). `peak_beyond_mib` is the most that any worker's
memory grew by beyond the result. Eight workers of one device each, a slice of its own each.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import reshard_peers
from local_cluster import Cluster, add_only, chosen

WORKERS = 8
ROWS = ["link", "replicate_4", "rows_to_columns", "columns_to_rows", "4_to_2", "2_to_4", "permuted", "sync"]


def specs(row, mib):
    """[(shape, source, target)] of float32 arrays; a sharding is (worker numbers, spec)."""
    from jax.sharding import PartitionSpec as P

    n = mib * 1024 * 1024 // 4
    square = (n // 4096, 4096)
    if row == "link":
        return [(square, ([0], P()), ([1], P()))]
    if row == "replicate_4":
        return [(square, ([0, 1, 2, 3], P("x")), ([4, 5, 6, 7], P()))]
    if row == "rows_to_columns":
        return [(square, ([0, 1, 2, 3], P("x")), ([0, 1, 2, 3], P(None, "x")))]
    if row == "columns_to_rows":
        return [(square, ([0, 1, 2, 3], P(None, "x")), ([0, 1, 2, 3], P("x")))]
    if row == "4_to_2":
        return [(square, ([0, 1, 2, 3], P("x")), ([4, 5], P("x")))]
    if row == "2_to_4":
        return [(square, ([0, 1], P("x")), ([4, 5, 6, 7], P("x")))]
    if row == "permuted":
        return [(square, ([0, 1, 2, 3], P("x")), ([1, 0, 3, 2], P("x")))]
    # 200 tensors of a model, trainer to sampler: 1 GiB when the others are 256 MiB.
    return [((4 * n // 200 // 512 // 4 * 4, 512), ([0, 1, 2, 3], P("x")), ([4, 5], P(None, "x")))] * 200


def masks(shape, devices, spec):
    """Worker -> the elements that it holds."""
    import numpy as np

    held = {}
    for position, worker in enumerate(devices):
        mask = held.setdefault(worker, np.zeros(shape, bool))
        index = [slice(None)] * len(shape)
        for axis, name in enumerate(spec):
            if name is not None:
                size = shape[axis] // len(devices)
                index[axis] = slice(position * size, (position + 1) * size)
        mask[tuple(index)] = True
    return held


def bound(shape, source, target):
    """Bytes that workers need and do not hold."""
    held = masks(shape, *source)
    return 4 * int(sum((mask & ~held.get(worker, False)).sum() for worker, mask in masks(shape, *target).items()))


def child(row, mib, rounds):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding

    devices = jax.devices()

    def sharding(workers, spec):
        return NamedSharding(Mesh(np.array([devices[w] for w in workers]), ("x",)), spec)

    work = specs(row, mib)
    values = [np.random.default_rng(0).random(shape, np.float32) for shape in {shape for shape, _, _ in work}]
    arrays = [jax.device_put(values[0], sharding(*source)) for _, source, _ in work]
    targets = [sharding(*target) for _, _, target in work]
    jax.block_until_ready(arrays)
    seconds, moved = [], None
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        moved = None
        # New objects of the same buffers, or a stock client would remember what it fetched in the round before.
        arrays = [jax.make_array_from_single_device_arrays(a.shape, a.sharding, [s.data for s in a.addressable_shards])
                  for a in arrays]
        start = time.perf_counter()
        moved = jax.device_put(arrays, targets)
        jax.block_until_ready(moved)
        seconds.append(time.perf_counter() - start)
    np.testing.assert_array_equal(np.asarray(moved[0]), values[0])
    print(json.dumps({"seconds": seconds}), flush=True)


def links(cluster):
    """Bytes that workers pulled from workers, of their last heartbeats."""
    workers = [w for s in cluster.proxy()["slices"] for w in s["workers"]]
    names = {w["life"] for w in workers}
    return sum(link["bytes_received"] for w in workers for link in w.get("links", []) if link["from"] in names)


def memory(info):
    """Peak and present memory of each worker, in bytes; the peak starts anew."""
    out = {}
    for p in info["processes"]:
        if p["name"].startswith("worker"):
            lines = pathlib.Path(f"/proc/{p['pid']}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            out[int(p["name"].split("-")[1])] = [int(fields[k].split()[0]) * 1024 for k in ("VmHWM", "VmRSS")]
            pathlib.Path(f"/proc/{p['pid']}/clear_refs").write_text("5")
    return out


def run(cluster, row, mib, rounds, **env):
    process = subprocess.Popen([sys.executable, __file__, "--child", row, "--mib", str(mib), "--rounds", str(rounds)],
                               env=cluster.env(**env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    if not process.stdout.readline():
        raise RuntimeError(f"{row}: the client ended")
    time.sleep(0.6)  # heartbeats
    before, rss = links(cluster), memory(cluster.info)
    process.stdin.write("\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    time.sleep(0.6)
    moved = links(cluster) - before
    work = specs(row, mib)
    result = {w: 4 * len(work) * int(mask.sum()) for w, mask in masks(work[0][0], *work[0][2]).items()}
    beyond = max(peak - rss[w][1] - result.get(w, 0) for w, (peak, _) in memory(cluster.info).items())
    errors = process.communicate(timeout=60)[1]
    if process.returncode != 0 or not answer:
        raise RuntimeError(f"{row}: the client failed: {errors[-2000:]}")
    return json.loads(answer)["seconds"], moved, beyond


def peer_times(peer, row, work, rounds, ours):
    """What a peer adds to the line of a row that took us `ours` seconds."""
    samples = reshard_peers.seconds(peer, row, work, rounds)
    if isinstance(samples, str):
        print(f"{row} by {peer}: {samples}", file=sys.stderr)
        return {f"{peer}_s": None}
    theirs = statistics.median(samples)
    return {f"{peer}_s": round(theirs, 4), f"{peer}_ratio": round(ours / theirs, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="size of one array")
    parser.add_argument("--rounds", type=int, default=5)
    add_only(parser, ROWS)
    parser.add_argument("--peers", default=",".join(reshard_peers.PEERS), help="those to measure beside; empty: none")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.mib, args.rounds)
    wanted, link, wrong, peers = chosen(parser, args, ROWS), None, 0, []
    for peer in filter(None, args.peers.split(",")):
        if peer not in reshard_peers.PEERS:
            parser.error(f"--peers={peer}: one of {', '.join(reshard_peers.PEERS)}")
        if why := reshard_peers.missing(peer):
            print(json.dumps({"skipped": peer, "why": why}), flush=True)
        else:
            peers.append(peer)
    with Cluster(WORKERS) as cluster:
        for row in dict.fromkeys(["link", *wanted]):     # the others are measured against it
            work = specs(row, args.mib)
            lacking = len(work) * bound(*work[0])
            total = len(work) * 4 * work[0][0][0] * work[0][0][1]
            seconds, moved, beyond = run(cluster, row, args.mib, args.rounds)
            first, median = seconds[0], statistics.median(seconds)
            line = {"row": row, "tensors": len(work), "mib": round(total / 2**20), "bytes_bound": lacking,
                    "bytes_moved": moved // args.rounds, "first_s": round(first, 4), "median_s": round(median, 4),
                    "peak_beyond_mib": round(beyond / 2**20)}
            wrong += moved != lacking * args.rounds
            if row == "link":
                link = lacking / median
                line["link_gb_s"] = round(link / 1e9, 2)
            else:
                line["ratio"] = round(median / (lacking / link), 2) if lacking else None
                try:
                    client, _, _ = run(cluster, row, args.mib, min(args.rounds, 3),
                                       LANDBRIDGE_PATCHES="-device_put")
                    line["client_s"] = round(statistics.median(client), 4)
                    line["times_faster"] = round(statistics.median(client) / median, 1)
                except RuntimeError:
                    line["client_s"] = None  # a program over several workers
            for peer in peers:
                line.update(peer_times(peer, row, work, args.rounds, median))
            line["load"] = round(os.getloadavg()[0], 1)
            print(json.dumps(line), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
