#!/usr/bin/env python3
"""How much of a pipeline and of an RL loop overlaps, against what could at best (targets A4.8 and A4.9).

    .venv/bin/python bench/overlap.py [--rounds 3] > results.jsonl

Virtual compute (device time that is a timer), real transfers between workers. One JSON line per result:
  pipeline   four stages, 2 ms forward and 4 ms backward (and 0.5/1 ms), activations of 4 MiB and of 4 KiB, submitted in
             GPipe's order and as 1F1B: idle share of the stages in a step against (p-1)/(m+p-1), and the excess in points;
             CPU time of client and servers per step, and what it alone, spread over all cores, would make the step
             (`cpu_bound_s`): where that is more than the stages' own time, the machine is too small for the activations
  rl         sampler 200 ms +- 50 %, trainer 150 ms, weights of 256 MiB synchronised each step, batches of 64 MiB: time of a
             step against max(sampler, trainer), one thing at a time and one step off policy; bytes through the proxy
"""
import argparse
import itertools
import json
import os
import statistics

from local_cluster import ROOT, Cluster, add_only, chosen

PIPELINE = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np, landbridge
sys.path.insert(0, sys.argv[1])
from pipeline_1f1b import schedule
forward_us, micro_batches, order, kib = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
stages, backward_us, warm, steps = 4, 2 * forward_us, 5, 25
where = [next(d for d in jax.devices() if d.slice_index == s) for s in range(stages)]
forward = jax.jit(lambda x: landbridge.virtual_compute(x + 1, duration_us=forward_us))
backward = jax.jit(lambda x, g: landbridge.virtual_compute(x + g, duration_us=backward_us))
batches = [jax.device_put(np.full(kib * 256, m, np.float32), where[0]) for m in range(micro_batches)]

def gpipe():
    yield from ((s, "forward", m) for m in range(micro_batches) for s in range(stages))
    yield from ((s, "backward", m) for m in range(micro_batches) for s in reversed(range(stages)))

def step():
    xs, ys, gs = {}, {}, {}
    for s, kind, m in (gpipe() if order == "gpipe" else schedule(stages, micro_batches)):
        if kind == "forward":
            xs[s, m] = batches[m] if s == 0 else jax.device_put(ys.pop((s - 1, m)), where[s])
            ys[s, m] = forward(xs[s, m])
        else:
            g = ys.pop((s, m)) if s == stages - 1 else jax.device_put(gs.pop((s + 1, m)), where[s])
            gs[s, m] = backward(xs.pop((s, m)), g)
    return [gs[0, m] for m in range(micro_batches)]

for _ in range(warm):
    jax.block_until_ready(step())
samples, cpu = [], time.process_time()
for _ in range(steps):
    start = time.perf_counter()
    out = jax.block_until_ready(step())
    samples.append(time.perf_counter() - start)
cpu = time.process_time() - cpu
for m, g in enumerate(out):
    assert float(g[0]) == (m + 4) + (m + 3) + (m + 2) + (m + 1) + m
busy = micro_batches * (forward_us + backward_us) / 1e6
idle = 1 - busy / sorted(samples)[len(samples) // 2]
ideal = (stages - 1) / (micro_batches + stages - 1)
print(json.dumps({"idle": idle, "ideal_idle": ideal, "excess_points": 100 * (idle - ideal),
                  "step_s": sorted(samples)[steps // 2], "client_cpu_s": cpu / steps, "steps": steps + warm}))
"""

RL = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np, landbridge
sampler, trainer = (next(d for d in jax.devices() if d.slice_index == s) for s in (0, 1))
rng, steps = np.random.default_rng(0), 12
times = [int(200_000 * rng.uniform(0.5, 1.5)) // 10_000 * 10_000 for _ in range(steps)]
write = {us: jax.jit(lambda w, us=us: landbridge.virtual_compute(jnp.zeros(16 << 20, jnp.float32) + w[0], duration_us=us))
         for us in set(times)}
learn = jax.jit(lambda w, batch: landbridge.virtual_compute(w + batch[0] * 0 + 1, duration_us=150_000), donate_argnums=0)

def run(overlapped):
    w = jax.device_put(np.zeros(64 << 20, np.float32), trainer)
    copy = jax.block_until_ready(jax.device_put(w, sampler))
    batch = None
    start = time.perf_counter()
    for us in times:
        written = write[us](copy)
        if not overlapped:
            written.block_until_ready()
            batch = written
        if batch is not None:
            w = learn(w, jax.device_put(batch, trainer))
            copy = jax.device_put(w, sampler)
            if not overlapped:
                copy.block_until_ready()
        batch = written
    jax.block_until_ready((w, copy, batch))
    return (time.perf_counter() - start) / steps, float(w[0])

for us in write:
    write[us](jax.device_put(np.zeros(64 << 20, np.float32), sampler)).block_until_ready()
run(True)
apart, learned = run(False)
assert learned == steps
together, learned = run(True)
assert learned == steps - 1
best = max(sum(times) / steps, 150_000) / 1e6
print(json.dumps({"apart_s": apart, "together_s": together, "best_s": best, "efficiency": best / together}))
"""


FIGURES = ("pipeline", "rl")


def cpu_seconds(process):
    times = process.cpu_times()
    return times.user + times.system


def with_cpu(cluster, run):
    """The result of a script that measures steps; its servers' CPU time is told beside its own."""
    servers = cluster.processes()
    before = sum(map(cpu_seconds, servers))
    result = run()
    if "steps" not in result:
        return result
    per_step = (sum(map(cpu_seconds, servers)) - before) / result.pop("steps") + result.pop("client_cpu_s")
    return {**result, "cpu_s": per_step, "cpu_bound_s": per_step / os.cpu_count()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    add_only(parser, FIGURES)
    args = parser.parse_args()
    wanted = chosen(parser, args, FIGURES)
    cluster, figures = Cluster(4), {}

    def note(name, result):
        print(json.dumps({"figure": name, **result}), flush=True)
        figures.setdefault(name, []).append(result)

    try:
        for _ in range(args.rounds):
            for us in (2000, 500) if "pipeline" in wanted else ():
                for order, kib in itertools.product(("gpipe", "1f1b"), (4096, 4)):
                    run = lambda: cluster.run(PIPELINE, ROOT / "examples", us, 16, order, kib)
                    note(f"pipeline_{order}_{us}us_{kib}KiB", {**with_cpu(cluster, run), "load": os.getloadavg()[0]})
            if "rl" in wanted:
                before = cluster.proxy_bytes()
                result = cluster.run(RL)
                note("rl", {**result, "proxy_bytes": cluster.proxy_bytes() - before})
    finally:
        cluster.close()
    for name, results in figures.items():
        good = [r for r in results if "error" not in r]
        key = "efficiency" if name == "rl" else "excess_points"
        if good:
            print(json.dumps({"summary": name, key: statistics.median(r[key] for r in good)}))


if __name__ == "__main__":
    main()
