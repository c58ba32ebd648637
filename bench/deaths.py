"""How soon a killed worker is an error on exactly the arrays that needed it, at a blocked client.

Per round: slice 0 computes something that takes long, slice 1 waits for it as the input of a program, the client for that
program's output; slice 0's worker is killed, and the client's wait ends with DATA_LOSS. The time from kill(2) to the
exception contains the end of the process, its peers' end-of-file, both workers, the proxy and the client. What slice 1 had
of its own must still be there. (What the data plane alone adds: dataplane_benchmark --deaths.)

    python bench/deaths.py [--kills N]
"""
import argparse
import json
import os
import sys

from local_cluster import Cluster, LANDBRIDGE

SCRIPT = """
import json, os, signal, subprocess, sys, time
import jax, numpy as np
import landbridge

state, landbridge_tool, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
first, second = (next(d for d in jax.devices() if d.slice_index == s) for s in (0, 1))
slow = jax.jit(lambda v: landbridge.virtual_compute(v, duration_us=3_000_000))
step = jax.jit(lambda v: v + 1)


def worker():
    out = subprocess.run([landbridge_tool, "status", "--json", "--state", state], capture_output=True, text=True)
    return next(p["pid"] for p in json.loads(out.stdout)["processes"] if p["name"] == "worker-0-0")


def ready():
    end = time.monotonic() + 60
    while True:
        try:
            return np.asarray(step(jax.device_put(np.float32(1), first)))
        except Exception:  # not back yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


times, kept = [], step(jax.device_put(np.arange(1000, dtype=np.float32), second))
for i in range(kills + 1):  # the first one warms up
    ready()
    pid = worker()
    x = slow(jax.device_put(np.zeros(1 << 18, np.float32), first))
    z = step(jax.device_put(x, second))
    time.sleep(0.1)  # until everything is where it waits
    os.kill(pid, signal.SIGKILL)
    start = time.perf_counter()
    try:
        z.block_until_ready()
        raise SystemExit("the worker's death was not noticed")
    except jax.errors.JaxRuntimeError as error:
        took = time.perf_counter() - start
        assert "DATA_LOSS" in str(error), error
    np.testing.assert_array_equal(np.asarray(kept), np.arange(1000, dtype=np.float32) + 1)
    if i > 0:
        times.append(took * 1e3)
    while worker() == pid:
        time.sleep(0.1)
print(json.dumps({"times_ms": times}))
"""

# A worker that ends again and again is started ever more slowly: some kills of one cluster, then another cluster.
KILLS_OF_A_CLUSTER = 6



def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    args = parser.parse_args()
    times = []
    while len(times) < args.kills:
        with Cluster(2) as cluster:
            line = cluster.run(SCRIPT, cluster.state, LANDBRIDGE, min(KILLS_OF_A_CLUSTER, args.kills - len(times)))
        if "error" in line:
            print(json.dumps(line))
            return 1
        times += line["times_ms"]
    times.sort()
    print(json.dumps({"bench": "death_to_error", "kills": args.kills, "p50_ms": round(times[len(times) // 2], 2),
                      "p99_ms": round(times[min(len(times) - 1, int(0.99 * len(times)))], 2), "goal_p99_ms": 50,
                      "load": round(os.getloadavg()[0], 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
