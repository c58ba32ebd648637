#!/usr/bin/env python3
"""Whether cost and memory stay flat: loops of 10^5 steps, 200,000 live arrays, 1,000 arguments, trees of 5,000 leaves.

    .venv/bin/python bench/wide.py [--only loop,arguments_1000] > results.jsonl

One JSON line per window or size, with the time of a call, the processor time of proxy and worker a call, their resident
memory, and the bytes that a step put on the control stream.
"""
import argparse
import json
import time

import jax
import numpy as np
import psutil

from local_cluster import Cluster, add_only, chosen


def figures(processes):
    out = {}
    for name, process in processes.items():
        times = process.cpu_times()
        out[name] = {"cpu_s": times.user + times.system, "rss_mb": process.memory_info().rss / 1e6}
    return out


def control_bytes(cluster):
    return sum(w["control"]["bytes"] for s in cluster.proxy()["slices"] for w in s["workers"])


class Window:
    """Prints what `calls` calls cost."""

    def __init__(self, cluster, name, calls, **more):
        self.cluster, self.line, self.calls = cluster, {"figure": name, **more}, calls
        self.processes = {p["name"]: psutil.Process(p["pid"]) for p in cluster.info["processes"]
                          if p["name"] in ("proxy", "worker-0-0")}

    def __enter__(self):
        self.bytes, self.before, self.start = control_bytes(self.cluster), figures(self.processes), time.perf_counter()

    def __exit__(self, *_):
        seconds, now = time.perf_counter() - self.start, figures(self.processes)
        for name in now:
            self.line[name + "_cpu_us"] = (now[name]["cpu_s"] - self.before[name]["cpu_s"]) / self.calls * 1e6
            self.line[name + "_rss_mb"] = now[name]["rss_mb"]
        self.line["us"] = seconds / self.calls * 1e6
        self.line["control_bytes"] = (control_bytes(self.cluster) - self.bytes) / self.calls
        print(json.dumps(self.line), flush=True)


# Each takes the cluster, a device of it, the program v + 1 and an array for it.

def loop(cluster, device, f, x):
    first = float(x)
    for window in range(10):
        with Window(cluster, "loop", 10_000, window=window):
            for _ in range(10_000):
                x = f(x)
            x.block_until_ready()
    assert float(x) == first + 100_000


def arguments_1000(cluster, device, f, x):
    step = jax.jit(lambda params, v: [p * 0.5 + v for p in params], donate_argnums=0)
    params = [jax.device_put(np.zeros(4, np.float32), device) for _ in range(1000)]
    for _ in range(3):
        params = step(params, x)
    jax.block_until_ready(params)
    for window in range(3):
        with Window(cluster, "arguments_1000", 100, window=window):
            for _ in range(100):
                params = step(params, x)
            jax.block_until_ready(params)


def leaves_5000(cluster, device, f, x):
    tree = {f"leaf{i}": np.float32(i) for i in range(5000)}
    g = jax.jit(lambda t: jax.tree.map(lambda v: v + 1, t))
    on_device = jax.block_until_ready(g(jax.device_put(tree, device)))
    for window in range(3):
        with Window(cluster, "leaves_5000", 10, window=window):
            for _ in range(10):
                on_device = g(on_device)
            jax.block_until_ready(on_device)


def live_arrays(cluster, device, f, x):
    many = jax.jit(lambda v: [v + i for i in range(5000)])
    jax.block_until_ready(many(x))
    keep = []
    for live in (50_000, 100_000, 150_000, 200_000):
        with Window(cluster, "live_arrays", 50_000, live=live):
            keep += [many(x) for _ in range(10)]
            jax.block_until_ready(keep[-1])
    with Window(cluster, "release", 200_000):
        del keep
        jax.block_until_ready(x + 1)


FIGURES = {f.__name__: f for f in (loop, arguments_1000, leaves_5000, live_arrays)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_only(parser, FIGURES)
    args = parser.parse_args()
    wanted = chosen(parser, args, FIGURES)
    with Cluster(1) as cluster:
        jax.config.update("jax_backend_target", cluster.address)
        jax.config.update("jax_platforms", "proxy")
        device = jax.devices()[0]
        f = jax.jit(lambda v: v + 1)
        x = jax.block_until_ready(f(jax.device_put(np.float32(0), device)))
        for name in wanted:
            FIGURES[name](cluster, device, f, x)


if __name__ == "__main__":
    main()
