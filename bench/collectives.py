#!/usr/bin/env python3
"""All-reduce over two processes: Landbridge's workers against JAX's own multi-process CPU runtime (gloo), in turns.

    .venv/bin/python bench/collectives.py [--rounds 5] [--only 4B,1MiB,64MiB] > results.jsonl

The same program on both sides: a shard_map with `psum` over a mesh of two devices, each in a process of its own, with
one array of the given size per device (float32). One JSON line per size and round, then a summary with medians:
  in_program_us   per all-reduce, when one program does many, one after the other
  call_us         one call of a program with one all-reduce, until its result is ready
`ratio` is ours over gloo's.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

from local_cluster import Cluster, add_only, chosen, plain_env

SIZES = {"4B": 4, "1MiB": 1 << 20, "64MiB": 64 << 20}
# Times of everything on one side; process 0 prints them.
PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

sizes, rank, address = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if address:
    jax.distributed.initialize(address, num_processes=2, process_id=rank)
devices = jax.devices()
assert len(devices) == 2, devices
mesh = Mesh(np.array(devices), "x")
sharding = NamedSharding(mesh, P("x"))

def reducer(times):
    def body(v):  # the mean: values stay as they are, so every step can be checked
        return jax.lax.fori_loop(0, times, lambda i, v: jax.lax.psum(v, "x") * 0.5, v)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))

def seconds(f, x, calls):
    f(x).block_until_ready()
    start = time.perf_counter()
    for _ in range(calls):
        f(x).block_until_ready()
    return (time.perf_counter() - start) / calls

for name, size in sizes.items():
    n = size // 4
    x = jax.make_array_from_callback((2 * n,), sharding, lambda index: np.full(n, 1 + index[0].start // n, np.float32))
    times = 200 if size < 1024 else 50 if size <= 1 << 20 else 4
    calls = 200 if size < 1024 else 50 if size <= 1 << 20 else 5
    once, many = reducer(1), reducer(times)
    got = np.asarray(once(x).addressable_shards[0].data)
    assert got.shape == (n,) and (got == 1.5).all(), got
    result = {"size": name, "call_us": seconds(once, x, calls) * 1e6,
              "in_program_us": seconds(many, x, 3) / times * 1e6}
    if rank == 0:
        print(json.dumps(result), flush=True)
"""


def gloo(sizes):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    env = {**plain_env(), "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(sizes), str(rank), address], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    outs = [rank.communicate(timeout=600) for rank in ranks]
    for rank, (_, err) in zip(ranks, outs):
        if rank.returncode != 0:
            sys.exit(f"gloo failed: {err[-2000:]}")
    return [json.loads(line) for line in outs[0][0].splitlines() if line.startswith("{")]  # gloo prints, too


def ours(cluster, sizes):
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(sizes), "0", ""], env=cluster.env(),
                          capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"landbridge failed: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.strip().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    add_only(parser, SIZES)
    args = parser.parse_args()
    sizes = {name: SIZES[name] for name in chosen(parser, args, SIZES)}
    collected = {}
    with Cluster(1, "--workers-per-slice", "2") as cluster:
        for _ in range(args.rounds):
            for side, results in (("gloo", gloo(sizes)), ("landbridge", ours(cluster, sizes))):
                for result in results:
                    print(json.dumps({"side": side, **result, "load": os.getloadavg()[0]}), flush=True)
                    for key in ("call_us", "in_program_us"):
                        collected.setdefault((result["size"], key, side), []).append(result[key])
    for size in sizes:
        row = {"summary": size}
        for key in ("in_program_us", "call_us"):
            median = {side: statistics.median(collected[size, key, side]) for side in ("gloo", "landbridge")}
            row[key] = {**median, "ratio": median["landbridge"] / median["gloo"]}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
