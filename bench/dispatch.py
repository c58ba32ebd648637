#!/usr/bin/env python3
"""What dispatching before inputs exist is worth: chains over slices, parallel against sequential asynchronous dispatch.

    .venv/bin/python bench/dispatch.py [--rounds 5] > results.jsonl

Virtual compute throughout (device time that is a timer), so that two cores can stand for a cluster. One JSON line per
result:
  chain        A -> B -> C ... over slices, as figure 7 of the Pathways paper: time of a chain of launches on alternating
               slices, per launch beyond its device time, parallel and sequential, in turns (ABAB) on two clusters
  edge         how long after the end of A on one slice B starts on the other, for 4 KiB, beyond what it takes on one: the
               same chain on one slice, in the same run, is subtracted
  ready        how long a ready launch C takes on a device whose older launch B waits for a remote input, beyond the same
               launch on an idle device
  flood        median time of single launches on one slice, alone and beside 5,000 small launches on another
"""
import argparse
import json
import statistics

from local_cluster import Cluster, add_only, chosen

PRELUDE = """
import functools, json, sys, time
import jax, numpy as np, landbridge
one, other = (next(d for d in jax.devices() if d.slice_index == s) for s in (0, 1))

@functools.cache
def slow(us):
    return jax.jit(lambda v: landbridge.virtual_compute(v + 1, duration_us=us))

def quantiles(samples):
    samples = sorted(samples)
    return {"p50": samples[len(samples) // 2], "p99": samples[min(len(samples) - 1, len(samples) * 99 // 100)]}
"""

# Two slices in turn; the whole chain is submitted before its first launch has ended.
CHAIN = PRELUDE + """
us, length, rounds = 5000, 40, 12
f = slow(us)
x = jax.device_put(np.zeros(1024, np.float32), one)
def chain(crossing):
    v = x
    for i in range(length):
        v = f(v)
        if crossing:
            v = jax.device_put(v, other if i % 2 == 0 else one)
    return v
jax.block_until_ready((chain(False), chain(True)))
over = {False: [], True: []}  # microseconds per launch beyond its device time
for _ in range(rounds):
    for crossing in over:
        start = time.perf_counter()
        end = chain(crossing)
        end.block_until_ready()
        over[crossing].append((time.perf_counter() - start) * 1e6 / length - us)
        assert float(end[0]) == length
edges = [two - alone for two, alone in zip(over[True], over[False])]
print(json.dumps({"us_per_launch": us, "launches": length, "over_us_per_edge": quantiles(over[True]),
                  "over_us_one_slice": quantiles(over[False]), "edge_us": quantiles(edges)}))
"""

READY = PRELUDE + """
f, remote = slow(200), slow(30_000)
x, y = jax.device_put(np.zeros(8, np.float32), one), jax.device_put(np.zeros(8, np.float32), other)
jax.block_until_ready((f(y), remote(x), f(jax.device_put(remote(x), other))))
def timed():
    start = time.perf_counter()
    f(y).block_until_ready()
    return (time.perf_counter() - start) * 1e6
alone, beside = [], []
for _ in range(60):
    alone.append(timed())
    b = f(jax.device_put(remote(x), other))
    beside.append(timed())
    assert not b.is_ready()
    b.block_until_ready()
print(json.dumps({"alone_us": quantiles(alone), "beside_waiting_us": quantiles(beside),
                  "added_us_p50": quantiles(beside)["p50"] - quantiles(alone)["p50"]}))
"""

# A second client floods slice 0 while this one measures slice 1, launch by launch.
FLOOD = PRELUDE + """
import subprocess
f = slow(1000)
y = jax.device_put(np.zeros(8, np.float32), other)
f(y).block_until_ready()
def timed(count):
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        f(y).block_until_ready()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples
alone = timed(400)
flooder = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
flooder.stdout.readline()           # it has submitted
beside = []
while len(beside) < 400 and flooder.poll() is None:
    beside += timed(1)
flooder.stdin.close()
assert flooder.wait(120) == 0
print(json.dumps({"alone_us": quantiles(alone), "beside_flood_us": quantiles(beside), "samples": len(beside),
                  "median_ratio": quantiles(beside)["p50"] / quantiles(alone)["p50"]}))
"""
FLOODER = PRELUDE + """
f = slow(500)
x = jax.device_put(np.zeros(8, np.float32), one)
f(x).block_until_ready()
ys = [f(x) for _ in range(5000)]
print("submitted", flush=True)
jax.block_until_ready(ys)
"""


FIGURES = ("chain", "ready", "flood")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    add_only(parser, FIGURES)
    args = parser.parse_args()
    wanted = chosen(parser, args, FIGURES)
    parallel, sequential = Cluster(2), Cluster(2, "--proxy-arg=--dispatch=sequential")
    collected = {}

    def note(figure, mode, result):
        print(json.dumps({"figure": figure, "mode": mode, **result}), flush=True)
        collected.setdefault((figure, mode), []).append(result)

    try:
        for _ in range(args.rounds):
            if "chain" in wanted:
                note("chain", "parallel", parallel.run(CHAIN))
                note("chain", "sequential", sequential.run(CHAIN))
            if "ready" in wanted:
                note("ready", "parallel", parallel.run(READY))
            if "flood" in wanted:
                note("flood", "parallel", parallel.run(FLOOD, FLOODER))
    finally:
        parallel.close()
        sequential.close()
    median = lambda figure, mode, pick: statistics.median(pick(r) for r in collected[figure, mode])
    if "chain" in wanted:
        per_edge = {m: median("chain", m, lambda r: r["over_us_per_edge"]["p50"]) for m in ("parallel", "sequential")}
        edge = {m: median("chain", m, lambda r: r["edge_us"]["p50"]) for m in ("parallel", "sequential")}
        print(json.dumps({"summary": "chain", "over_us_per_edge": per_edge, "edge_us": edge,
                          "sequential_over_parallel": per_edge["sequential"] / per_edge["parallel"]}))
    if "ready" in wanted:
        print(json.dumps({"summary": "ready", "added_us": median("ready", "parallel", lambda r: r["added_us_p50"])}))
    if "flood" in wanted:
        print(json.dumps({"summary": "flood", "median_ratio": median("flood", "parallel", lambda r: r["median_ratio"])}))


if __name__ == "__main__":
    main()
