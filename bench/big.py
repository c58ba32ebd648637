#!/usr/bin/env python3
"""What thousands of devices cost: stock JAX against the real proxy, resource manager and leases, with simulated workers.

    .venv/bin/python bench/big.py [--sizes 64x8 512x4 1280x8] [--rounds 5] > results.jsonl

One JSON line for each size, WORKERSxDEVICES; each worker is a slice, launches take no time, and programs compile as ever.
All processes share this machine: `load` says what else ran. Heartbeats come once a second instead of four times.
  ready_s           from the first process's start until the proxy has reached every worker (0.9 s are the start window)
  devices_s         jax.devices() of a new client; devices_cpu_s: CPU time of the client for it
  compile_s         first call of a jitted program on one slice; compile_other_s: the same program on another slice
  step_ms           a call of that program on every slice, dispatched and awaited; us_per_call: of those, per slice
  dispatch_us       the client's part of it: until the last call has returned
  cpu_us_per_call   CPU time per call of each process
  rss_mb            of each process, at the end; proxy_kb_per_device, rm_kb_per_device: beyond the smallest size's
  idle_cpu          share of a core while nothing is done: heartbeats
  loss_ms           a worker is killed: until an array that waits there is DATA_LOSS in the client; rejoin_ms: until its
                    next life serves
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

from local_cluster import ROOT, Cluster

sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from admin import Daemon  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")

CLIENT = """
import json, sys, time
start = time.perf_counter()
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
imported, cpu = time.perf_counter(), time.process_time()
devices = jax.devices()
out = {"devices": len(devices), "devices_s": time.perf_counter() - imported, "devices_cpu_s": time.process_time() - cpu}
rounds, width = int(sys.argv[1]), int(sys.argv[2])
rows = [NamedSharding(Mesh(np.array(devices[i:i + width]), ("x",)), P("x")) for i in range(0, len(devices), width)]
x = np.arange(width * 4, dtype=np.float32)
t = time.perf_counter()
arrays = [jax.device_put(x, s) for s in rows]
jax.block_until_ready(arrays)
out["put_ms"] = (time.perf_counter() - t) * 1e3
np.testing.assert_array_equal(np.asarray(arrays[-1]), x)
f = jax.jit(lambda v: v * 2 + 1)
t = time.perf_counter()
f(arrays[0]).block_until_ready()
out["compile_s"] = time.perf_counter() - t
t = time.perf_counter()
f(arrays[1]).block_until_ready()
out["compile_other_s"] = time.perf_counter() - t
t = time.perf_counter()
arrays = [f(a) for a in arrays]
jax.block_until_ready(arrays)
out["first_step_s"] = time.perf_counter() - t
print(json.dumps(out), flush=True)
sys.stdin.readline()
steps, dispatches = [], []
for _ in range(rounds):
    t = time.perf_counter()
    arrays = [f(a) for a in arrays]
    dispatches.append(time.perf_counter() - t)
    jax.block_until_ready(arrays)
    steps.append(time.perf_counter() - t)
print(json.dumps({"steps": steps, "dispatches": dispatches}), flush=True)
sys.stdin.readline()
victim = jax.device_put(x, rows[0])
victim.block_until_ready()
print(json.dumps({}), flush=True)
failed = None
while failed is None:                    # each call goes to the slice whose worker is killed meanwhile
    try:
        f(victim).block_until_ready()
    except jax.errors.JaxRuntimeError as e:
        failed = time.time()
        assert "DATA_LOSS" in str(e), e
print(json.dumps({"failed_at": failed}), flush=True)
sys.stdin.readline()
"""


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Client:
    def __init__(self, cluster, rounds, devices):
        self.process = subprocess.Popen([sys.executable, "-c", CLIENT, str(rounds), str(devices)], env=cluster.env(), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the client has ended")
        return json.loads(line)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def measure(workers, devices, rounds):
    load = os.getloadavg()[0]
    patient = ("--lease_ms=20000", "--heartbeat_ms=1000")
    start = time.monotonic()
    cluster = Cluster(workers, "--simulated",
                      *(arg for kind in ("--proxy-arg", "--worker-arg", "--rm-arg") for f in patient for arg in (kind, f)), devices=devices)
    try:
        out = {"bench": "big", "workers": workers, "load": load, "ready_s": time.monotonic() - start}
        processes = {p["name"]: p for p in cluster.info["processes"]}
        pids = {name: p["pid"] for name, p in processes.items()}
        simulated = Daemon(processes["simulated-workers"]["address"])
        client = Client(cluster, rounds, devices)
        out.update(client.hear())
        pids["client"] = client.process.pid
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        client.go_on()
        timed = client.hear()
        calls = workers * rounds
        out["cpu_us_per_call"] = {name: (cpu_s(pid) - before[name]) / calls * 1e6 for name, pid in pids.items()}
        steps = sorted(timed["steps"])
        out["step_ms"] = steps[len(steps) // 2] * 1e3
        out["step_ms_max"] = steps[-1] * 1e3
        out["us_per_call"] = out["step_ms"] / workers * 1e3
        dispatches = sorted(timed["dispatches"])
        out["dispatch_us"] = dispatches[len(dispatches) // 2] / workers * 1e6
        out["rss_mb"] = {name: rss_mb(pid) for name, pid in pids.items()}

        before = {name: cpu_s(pid) for name, pid in pids.items()}
        idle = time.monotonic()
        time.sleep(3)
        idle = time.monotonic() - idle
        out["idle_cpu"] = {name: (cpu_s(pid) - before[name]) / idle for name, pid in pids.items()}

        client.go_on()
        client.hear()
        time.sleep(0.2)
        killed = time.time()
        simulated.ask("kill", worker="simulated-0", restart=True)
        out["loss_ms"] = (client.hear()["failed_at"] - killed) * 1e3
        while simulated.ask()["counts"]["serving"] < workers:
            if time.time() - killed > 30:
                sys.exit("the killed worker's next life does not serve")
            time.sleep(0.02)
        out["rejoin_ms"] = (time.time() - killed) * 1e3
        client.go_on()
        client.process.wait(30)
        return out
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["64x8", "512x4", "1280x8"], help="WORKERSxDEVICES")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    smallest = None
    for size in options.sizes:
        workers, devices = (int(n) for n in size.split("x"))
        out = measure(workers, devices, options.rounds)
        smallest = smallest or out
        more = out["devices"] - smallest["devices"]
        for name, key in (("proxy", "proxy_kb_per_device"), ("resource-manager", "rm_kb_per_device")):
            if more > 0:
                out[key] = (out["rss_mb"][name] - smallest["rss_mb"][name]) * 1024 / more
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in out.items()}), flush=True)


if __name__ == "__main__":
    main()
