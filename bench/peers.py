#!/usr/bin/env python3
"""The stock door beside plain JAX, Ray and Monarch, in one run: four ways of dispatching x + 1.

    .venv/bin/python bench/peers.py [--rounds 5] > results.jsonl

  OpByOp   a call per operation; its result, not looked at, is the next call's argument
  Sync     every call is waited for
  Chained  128 operations at one go: 128 calls of a jit dispatched together and then waited for (JAX has no capture of calls);
           a graph of 128 bound actor methods, executed at once (Ray)
  Fused    one call that does 128 operations: a jit of 128 additions; an actor method that adds 128 times

Every run checks its sum. Operations are additions, so Fused counts 128 a call. One JSON line per peer, mode and round; the
summary has medians and the ratio to Ray, whose chained actor calls are OpByOp, and to Monarch. Both are put into environments of
their own (build/peers) from PyPI the first time; a peer that cannot be installed is left out and said so.
"""
import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys

from local_cluster import ROOT, Cluster, add_only, chosen, plain_env

PACKAGES = {"ray": "ray==2.60.0", "monarch": "torchmonarch==0.7.0"}
MODES = ("OpByOp", "Sync", "Chained", "Fused")
CHAIN = 128

# `modes(seconds)` of each peer: {mode: operations per second}.
TIMED = """
import json, sys, time
CHAIN = 128
def rate(seconds, once, each, finish):
    '''Operations per second: `once` does `each` of them; `finish` waits for all and returns what was counted.'''
    once(); finish()
    before, done, start = finish(), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(8):
            once()
            done += each
    counted = finish()
    took = time.perf_counter() - start
    assert counted - before == done, (counted, before, done)
    return done / took
"""

JAX = TIMED + """
import jax, jax.numpy as jnp
from collections import deque
one = jax.jit(lambda v: v + 1)
def many(v):
    for _ in range(CHAIN):
        v = v + 1
    return v
fused = jax.jit(many)
class State: x = jnp.int32(0)
def step(f, wait=False):
    State.x = f(State.x)
    if wait:
        State.x.block_until_ready()
def chained():
    for _ in range(CHAIN):
        State.x = one(State.x)
    State.x.block_until_ready()
finish = lambda: int(State.x)
seconds = float(sys.argv[1])
print(json.dumps({"OpByOp": rate(seconds, lambda: step(one), 1, finish),
                  "Sync": rate(seconds, lambda: step(one, True), 1, finish),
                  "Chained": rate(seconds, chained, CHAIN, finish),
                  "Fused": rate(seconds, lambda: step(fused), CHAIN, finish)}))
"""

RAY = TIMED + """
import os
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray
from ray.dag import InputNode
ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
@ray.remote
class Adder:
    def one(self, v):
        return v + 1
    def many(self, v):
        for _ in range(CHAIN):
            v = v + 1
        return v
adder = Adder.remote()
with InputNode() as start:
    node = start
    for _ in range(CHAIN):
        node = adder.one.bind(node)
class State:
    x = ray.put(0)
    calls = 0
def step(method, wait=False):
    State.x = method.remote(State.x)
    State.calls += 1
    if wait or State.calls % 1000 == 0:     # or references pile up without bound
        ray.get(State.x)
def chained():
    State.x = node.execute(ray.get(State.x))
finish = lambda: ray.get(State.x)
seconds = float(sys.argv[1])
print(json.dumps({"OpByOp": rate(seconds, lambda: step(adder.one), 1, finish),
                  "Sync": rate(seconds, lambda: step(adder.one, True), 1, finish),
                  "Chained": rate(seconds, chained, CHAIN, finish),
                  "Fused": rate(seconds, lambda: step(adder.many), CHAIN, finish)}))
"""

MONARCH = TIMED + """
from monarch.actor import Actor, endpoint, this_host
class Adder(Actor):
    @endpoint
    async def one(self, v):
        return v + 1
    @endpoint
    async def many(self, v):
        for _ in range(CHAIN):
            v = v + 1
        return v
adder = this_host().spawn_procs(per_host={"gpus": 1}).spawn("adder", Adder)
class State: x = 0
def step(method):
    State.x = method.call_one(State.x).get()    # a result is no argument before it is there
finish = lambda: State.x
seconds = float(sys.argv[1])
print(json.dumps({"Sync": rate(seconds, lambda: step(adder.one), 1, finish),
                  "Fused": rate(seconds, lambda: step(adder.many), CHAIN, finish)}))
"""


def skip(peer, why):
    print(json.dumps({"bench": "peers", "peer": peer, "skipped": why}), flush=True)


def peer_python(peer):
    """The Python that has the peer, or None when it cannot be had here."""
    folder = ROOT / "build" / "peers" / peer
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True)
        if made.returncode == 0:
            made = subprocess.run([python, "-m", "pip", "install", "-q", PACKAGES[peer]], capture_output=True, text=True)
        if made.returncode != 0:
            skip(peer, f"{PACKAGES[peer]} cannot be installed: {made.stderr.strip()[-300:]}")
            return None
        (folder / "ready").touch()
    return python


def run(python, program, env, seconds):
    done = subprocess.run([python, "-c", program, str(seconds)], env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        return {"error": done.stderr[-800:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    peers = ("landbridge", "jax", "ray", "monarch")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="of a mode in a round")
    add_only(parser, peers)
    options = parser.parse_args()
    wanted = chosen(parser, options, peers)
    runs = {}
    for peer, program in (("ray", RAY), ("monarch", MONARCH)):
        if peer in wanted and (python := peer_python(peer)) is not None:
            runs[peer] = functools.partial(run, python, program, plain_env(), options.seconds)
    if "jax" in wanted:
        runs["jax"] = lambda: run(sys.executable, JAX, {**plain_env(), "JAX_PLATFORMS": "cpu"}, options.seconds)
    collected = {}
    cluster = Cluster(1) if "landbridge" in wanted else None
    try:
        if cluster is not None:
            runs["landbridge"] = lambda: run(sys.executable, JAX, cluster.env(), options.seconds)
        for round_number in range(options.rounds):
            for peer, measure in runs.items():
                rates = measure()
                print(json.dumps({"bench": "peers", "peer": peer, "round": round_number, "load": os.getloadavg()[0], **rates}),
                      flush=True)
                if "error" not in rates:
                    collected.setdefault(peer, []).append(rates)
    finally:
        if cluster is not None:
            cluster.close()
    medians = {peer: {mode: statistics.median(r[mode] for r in rates) for mode in MODES if mode in rates[0]}
               for peer, rates in collected.items()}
    summary = {"summary": "peers", "operations_per_s": medians}
    for peer in ("ray", "monarch"):
        if "landbridge" in medians and peer in medians:
            summary[f"ratio_to_{peer}"] = {mode: medians["landbridge"][mode] / rate for mode, rate in medians[peer].items()}
    if "landbridge" in medians and "ray" in medians:
        summary["stock_door_over_rays_chained_actor_calls"] = medians["landbridge"]["OpByOp"] / medians["ray"]["OpByOp"]
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
