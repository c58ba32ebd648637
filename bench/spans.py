#!/usr/bin/env python3
"""Launches over two workers of one slice: what their order costs, and what a late one costs the others.

    .venv/bin/python bench/spans.py [--rounds 5] > results.jsonl

One JSON line per result and round:
  chain    time per launch of a chain of small launches with one collective each, submitted at once: the two workers agree on
           each one's turn while the ones before it run
  ready    how long a launch C takes, submitted behind a launch B over the same devices whose input is a second away on another
           slice; and the same launch with nothing before it
  local    time per launch of a chain on one device of these workers: it asks nobody
"""
import argparse
import json

from local_cluster import Cluster, add_only, chosen

PRELUDE = """
import json, time
import jax, numpy as np, landbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
def over(devices, f):
    mesh = Mesh(np.array(devices), ("x",))
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    return g, NamedSharding(mesh, P("x"))
f, rows = over(devices[:4], lambda v: v + jax.lax.psum(v, "x") / 4)
x = jax.device_put(np.ones(4, np.float32), rows)
jax.block_until_ready(f(f(x)))
def median(samples):
    return sorted(samples)[len(samples) // 2]
def print_chain(f, x, length):
    samples = []
    for _ in range(9):
        started = time.monotonic()
        v = x
        for _ in range(length):
            v = f(v)
        v.block_until_ready()
        samples.append((time.monotonic() - started) / length * 1e6)
    print(json.dumps({"us_per_launch": median(samples), "us_per_launch_best": min(samples)}))
"""

CHAIN = PRELUDE + """
print_chain(f, x, 200)
"""

READY = PRELUDE + """
slow, there = over(devices[4:], lambda v: landbridge.virtual_compute(v + 1, duration_us=1_000_000))
far = jax.device_put(np.ones(4, np.float32), there)
jax.block_until_ready(f(jax.device_put(slow(far), rows)))
alone, behind = [], []
for _ in range(5):
    started = time.monotonic()
    f(x).block_until_ready()
    alone.append((time.monotonic() - started) * 1e6)
    b = f(jax.device_put(slow(far), rows))
    started = time.monotonic()
    f(x).block_until_ready()
    behind.append((time.monotonic() - started) * 1e6)
    b.block_until_ready()
print(json.dumps({"alone_us": median(alone), "behind_a_late_one_us": median(behind)}))
"""

LOCAL = PRELUDE + """
g = jax.jit(lambda v: v + 1)
y = jax.device_put(np.ones(4, np.float32), devices[0])
g(y).block_until_ready()
print_chain(g, y, 500)
"""

SCRIPTS = {"chain": CHAIN, "ready": READY, "local": LOCAL}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    add_only(parser, SCRIPTS)
    args = parser.parse_args()
    names = chosen(parser, args, SCRIPTS)
    with Cluster(2, "--workers-per-slice", "2", devices=2) as cluster:
        for round_ in range(args.rounds):
            for name in names:
                print(json.dumps({"what": name, "round": round_, **cluster.run(SCRIPTS[name])}), flush=True)


if __name__ == "__main__":
    main()
