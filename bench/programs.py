#!/usr/bin/env python3
"""A dozen typical programs, plain JAX against Landbridge: eight CPU devices on 1 x 8, 2 x 4 and 4 x 2 workers x devices.

    .venv/bin/python bench/programs.py [--only matmul,scan] [--shapes 1x8,2x4,4x2] [--rounds 3] > results.jsonl

Every shape takes its turn in every round, plain JAX (one process with eight devices) first. One JSON line per program:
milliseconds a step (the median over the rounds; a step is awaited as a user's loop would, every tenth), the ratio
of plain JAX's time to ours (1: as quick, 0.5: twice the time), and what the program computed, which must agree with plain
JAX within 1e-3. `arguments_N` is one call with N arguments, N results.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from local_cluster import Cluster, chosen, plain_env

NAMES = ["matmul", "small_ops", "tiny_jit", "scan", "mlp_fsdp", "attention", "conv", "linalg", "fft_sort", "random",
         "embedding", "psum", "adam_1000_leaves", "arguments_1", "arguments_10", "arguments_100", "arguments_1000"]
SHAPES = {"1x8": (1, 8), "2x4": (2, 4), "4x2": (4, 2)}

PROGRAM = r"""
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

devices = jax.devices()
assert len(devices) == 8, devices
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
rows, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
numbers = np.random.default_rng(0)

def normal(*shape, sharding=rows, scale=1.0):
    return jax.device_put((numbers.standard_normal(shape) * scale).astype(np.float32), sharding)

# Each gives a state and a step: state -> state.
def matmul():
    w = normal(1024, 1024, sharding=everywhere, scale=1 / 32)
    return normal(1024, 1024), jax.jit(lambda x: jnp.tanh(x @ w))

def small_ops():
    def step(x):
        for i in range(50):  # not jitted: a call for each
            x = x * 0.5 + i
        return x
    return normal(8, 16), step

def tiny_jit():
    f = jax.jit(lambda x: x * 0.5 + 1)
    def step(x):
        for _ in range(50):
            x = f(x)
        return x
    return jax.device_put(np.float32(1), devices[0]), step

def scan():
    w = normal(64, 64, sharding=everywhere, scale=1 / 8)
    def body(x, _):
        return jnp.tanh(x @ w), None
    return normal(64, 64), jax.jit(lambda x: jax.lax.scan(body, x, length=500)[0])

def mlp_fsdp():
    params = {f"w{i}": normal(1024, 1024, scale=1 / 32) for i in range(4)}
    x, y = normal(256, 1024), normal(256, 1024)
    def loss(params):
        h = x
        for w in params.values():
            h = jnp.tanh(h @ w)
        return jnp.mean((h - y) ** 2)
    step = lambda params: jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
    shardings = jax.tree.map(lambda p: p.sharding, params)
    return params, jax.jit(step, donate_argnums=0, out_shardings=shardings)

def attention():
    def step(x):
        q = x.reshape(8, 256, 8, 64)
        return x + jax.nn.dot_product_attention(q, q, q, is_causal=True).reshape(8, 256, 512) * 0.1
    return normal(8, 256, 512, scale=0.1), jax.jit(step)

def conv():
    w = normal(3, 3, 32, 32, sharding=everywhere, scale=1 / 17)
    return normal(16, 64, 64, 32), jax.jit(lambda x: jax.nn.relu(
        jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))) + 0.1)

def linalg():
    def one(a):
        s = a @ a.T + 64 * jnp.eye(64)
        return jnp.linalg.solve(s, a) + jnp.linalg.cholesky(s) * 0.01
    return normal(32, 64, 64), jax.jit(lambda x: jax.vmap(one)(x))

def fft_sort():
    return normal(64, 4096), jax.jit(lambda x: jnp.sort(jnp.fft.ifft(jnp.fft.fft(x)).real, axis=1))

def random():
    key = jax.device_put(jax.random.key(0), everywhere)
    return normal(512, 512), jax.jit(lambda x: 0.5 * x + jax.random.normal(key, (512, 512)))

def embedding():
    table = normal(8192, 256)
    ids = jax.device_put(numbers.integers(0, 8192, (512, 32)).astype(np.int32), rows)
    return normal(512, 256), jax.jit(lambda x: 0.5 * x + table[ids].mean(1))

def psum():
    body = lambda x: jax.lax.psum(x, "d") / 8 + x * 0.5
    return normal(8, 65536), jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d")))

def adam_1000_leaves():
    import optax
    adam = optax.adam(1e-3)
    params = [jax.device_put(np.full((8, 8), i, np.float32), everywhere) for i in range(1000)]
    def step(state):
        params, opt = state
        updates, opt = adam.update(params, opt)
        return optax.apply_updates(params, updates), opt
    opt = jax.jit(adam.init, out_shardings=everywhere)(params)
    return (params, opt), jax.jit(step, donate_argnums=0)

def arguments(n):
    return lambda: ([jax.device_put(np.full(4, i, np.float32), devices[0]) for i in range(n)],
                    jax.jit(lambda xs: [x + 1 for x in xs]))

steps = {"matmul": 20, "small_ops": 5, "tiny_jit": 20, "scan": 5, "mlp_fsdp": 20, "attention": 10, "conv": 10, "linalg": 10,
         "fft_sort": 10, "random": 20, "embedding": 20, "psum": 40, "adam_1000_leaves": 10}
for name in sys.argv[1:]:
    make = arguments(int(name.split("_")[1])) if name.startswith("arguments") else globals()[name]
    state, step = make()
    n = steps.get(name, 50)
    state = jax.block_until_ready(step(step(state)))
    start = time.perf_counter()
    for i in range(n):
        state = step(state)
        if i % 10 == 9:
            jax.block_until_ready(state)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    value = sum(float(np.abs(np.asarray(x, np.float64)).mean()) for x in jax.tree.leaves(state))
    print(json.dumps({"program": name, "ms": seconds / n * 1e3, "value": value}), flush=True)
"""


def run(env, names):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], env=env, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        sys.exit(f"the programs failed: {done.stderr[-3000:]}")
    return {line["program"]: line for line in map(json.loads, filter(None, done.stdout.splitlines()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma list of " + ", ".join(NAMES))
    parser.add_argument("--shapes", default=",".join(SHAPES), help="workers x devices: some of " + ", ".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    names = chosen(parser, args, NAMES)
    shapes = args.shapes.split(",")
    for shape in shapes:
        if shape not in SHAPES:
            parser.error(f"--shapes={shape}: one of {', '.join(SHAPES)}")
    plain = {**plain_env(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
             "PJRT_NPROC": os.environ.get("PJRT_NPROC", "16")}
    taken = {shape: [] for shape in ["plain", *shapes]}
    for _ in range(args.rounds):
        taken["plain"].append(run(plain, names))
        for shape in shapes:
            workers, devices = SHAPES[shape]
            with Cluster(1, "--workers-per-slice", str(workers), devices=devices) as cluster:
                taken[shape].append(run(cluster.env(), names))
    for name in names:
        ms = {shape: statistics.median(r[name]["ms"] for r in rounds) for shape, rounds in taken.items()}
        want = taken["plain"][0][name]["value"]
        for shape in shapes:
            got = taken[shape][0][name]["value"]
            if abs(got - want) > 1e-3 * abs(want):
                sys.exit(f"{name} on {shape} computes {got}, plain JAX {want}")
        print(json.dumps({"program": name, "value": want, "plain_ms": round(ms["plain"], 3),
                          **{f"{s}_ms": round(ms[s], 3) for s in shapes},
                          **{f"{s}_ratio": round(ms["plain"] / ms[s], 3) for s in shapes}}), flush=True)


if __name__ == "__main__":
    main()
