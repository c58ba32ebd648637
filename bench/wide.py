#!/usr/bin/env python3
"""Whether cost and memory stay flat: loops of 10^5 steps, 200,000 live arrays, 1,000 arguments, trees of 5,000 leaves.

    .venv/bin/python bench/wide.py > results.jsonl

One JSON line per window or size, with the time of a call, the processor time of proxy and worker a call, their resident
memory, and the bytes that a step put on the control stream.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
LANDBRIDGE = ROOT / "landbridge"
STATE = tempfile.mkdtemp(prefix="lb-bench-")


def servers(info):
    return {p["name"]: psutil.Process(p["pid"]) for p in info["processes"] if p["name"] in ("proxy", "worker-0-0")}


def figures(processes):
    out = {}
    for name, process in processes.items():
        times = process.cpu_times()
        out[name] = {"cpu_s": times.user + times.system, "rss_mb": process.memory_info().rss / 1e6}
    return out


def control_bytes():
    out = subprocess.run([LANDBRIDGE, "status", "--json", "--state", STATE], capture_output=True, text=True)
    proxy = json.loads(out.stdout)["proxy"]
    return sum(w["control"]["bytes"] for s in proxy["slices"] for w in s["workers"])


class Window:
    """Prints what `calls` calls cost."""

    def __init__(self, processes, name, calls, **more):
        self.processes, self.line, self.calls = processes, {"figure": name, **more}, calls

    def __enter__(self):
        self.bytes, self.before, self.start = control_bytes(), figures(self.processes), time.perf_counter()

    def __exit__(self, *_):
        seconds, now = time.perf_counter() - self.start, figures(self.processes)
        for name in now:
            self.line[name + "_cpu_us"] = (now[name]["cpu_s"] - self.before[name]["cpu_s"]) / self.calls * 1e6
            self.line[name + "_rss_mb"] = now[name]["rss_mb"]
        self.line["us"] = seconds / self.calls * 1e6
        self.line["control_bytes"] = (control_bytes() - self.bytes) / self.calls
        print(json.dumps(self.line), flush=True)


def run(processes):
    import jax
    import jax.numpy as jnp
    import numpy as np

    device = jax.devices()[0]
    f = jax.jit(lambda v: v + 1)
    x = jax.block_until_ready(f(jax.device_put(np.float32(0), device)))
    for window in range(10):
        with Window(processes, "loop", 10_000, window=window):
            for _ in range(10_000):
                x = f(x)
            x.block_until_ready()
    assert float(x) == 100_001

    step = jax.jit(lambda params, v: [p * 0.5 + v for p in params], donate_argnums=0)
    params = [jax.device_put(np.zeros(4, np.float32), device) for _ in range(1000)]
    for _ in range(3):
        params = step(params, x)
    jax.block_until_ready(params)
    for window in range(3):
        with Window(processes, "arguments_1000", 100, window=window):
            for _ in range(100):
                params = step(params, x)
            jax.block_until_ready(params)

    tree = {f"leaf{i}": np.float32(i) for i in range(5000)}
    g = jax.jit(lambda t: jax.tree.map(lambda v: v + 1, t))
    on_device = jax.block_until_ready(g(jax.device_put(tree, device)))
    for window in range(3):
        with Window(processes, "leaves_5000", 10, window=window):
            for _ in range(10):
                on_device = g(on_device)
            jax.block_until_ready(on_device)

    many = jax.jit(lambda v: [v + i for i in range(5000)])
    jax.block_until_ready(many(x))
    keep = []
    for live in (50_000, 100_000, 150_000, 200_000):
        with Window(processes, "live_arrays", 50_000, live=live):
            keep += [many(x) for _ in range(10)]
            jax.block_until_ready(keep[-1])
    with Window(processes, "release", 200_000):
        del keep
        jax.block_until_ready(x + 1)
    del jnp


def main():
    out = subprocess.run([LANDBRIDGE, "up", "--json", "--state", STATE, "--slices", "1", "--devices-per-worker", "1"],
                         capture_output=True, text=True, timeout=120)
    if out.returncode != 0:
        sys.exit(f"cannot start a cluster: {out.stderr}")
    info = json.loads(out.stdout)
    try:
        os.environ.update(JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=info["address"])
        run(servers(info))
    finally:
        subprocess.run([LANDBRIDGE, "down", "--state", STATE], capture_output=True, timeout=60)


if __name__ == "__main__":
    main()
