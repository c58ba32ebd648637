#!/usr/bin/env python3
"""What the compile cache on disk saves: compile times of a cluster that starts with an empty folder, and of the next one.

    .venv/bin/python bench/compile_cache.py [--only tiny,mlp,transformer] > results.jsonl

Each program is compiled by a client process of its own on a cluster of its own (four CPU devices), first with an empty
folder, then by another client on another cluster with the same folder. One JSON line per program: milliseconds of
`lowered.compile()` in both, bytes on disk, and the counters that show who compiled.
"""
import argparse
import json
import sys
import tempfile

from local_cluster import Cluster, add_only, chosen

COMMON = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
split, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())

def report(f, *args):
    lowered = f.lower(*args)
    begin = time.perf_counter()
    compiled = lowered.compile()
    print(json.dumps({"ms": round((time.perf_counter() - begin) * 1e3, 1)}))
"""

PROGRAMS = {
    "tiny": """
report(jax.jit(lambda v: v + 1), jax.device_put(np.arange(8.0), jax.devices()[0]))
""",
    "mlp": """
def loss(p, x):
    for w in p:
        x = jnp.tanh(x @ w)
    return jnp.mean(x ** 2)
params = [jax.device_put(np.ones((64, 64), np.float32), whole) for _ in range(6)]
step = jax.jit(lambda p, x: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x)))
report(step, params, jax.device_put(np.ones((32, 64), np.float32), split))
""",
    "transformer": """
def block(x, w):
    q, k, v = jnp.split(x @ w["qkv"], 3, axis=-1)
    a = jax.nn.softmax(jnp.einsum("bqh,bkh->bqk", q, k) / 8.0)
    x = x + jnp.einsum("bqk,bkh->bqh", a, v) @ w["out"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]
def loss(p, x):
    for w in p:
        x = block(x, w)
    return jnp.mean(x ** 2)
shapes = {"qkv": (64, 192), "out": (64, 64), "up": (64, 256), "down": (256, 64)}
params = [{n: jax.device_put(np.full(s, 0.01, np.float32), whole) for n, s in shapes.items()} for _ in range(8)]
step = jax.jit(lambda p, x: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x)))
report(step, params, jax.device_put(np.ones((8, 32, 64), np.float32), split))
""",
}


def compile_once(program, folder):
    with Cluster(1, f"--proxy-arg=--compile_cache={folder}", devices=4) as cluster:
        line = cluster.run(COMMON + PROGRAMS[program])
        if "error" in line:
            sys.exit(f"{program}: {line['error']}")
        return line["ms"], cluster.proxy()["compile"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_only(parser, list(PROGRAMS))
    args = parser.parse_args()
    for name in chosen(parser, args, list(PROGRAMS)):
        with tempfile.TemporaryDirectory(prefix="lb-bench-cache-") as folder:
            first_ms, first = compile_once(name, folder)
            second_ms, second = compile_once(name, folder)
        print(json.dumps({"bench": "compile_cache", "program": name, "first_ms": first_ms, "second_ms": second_ms,
                          "first_compiles": first["compiles"], "second_compiles": second["compiles"],
                          "disk_hits": second["disk_cache"]["hits"], "bytes": second["disk_cache"]["bytes"]}), flush=True)
        if second["compiles"] != 0:
            sys.exit(f"{name}: the second cluster compiled {second['compiles']} programs")


if __name__ == "__main__":
    main()
