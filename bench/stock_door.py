#!/usr/bin/env python3
"""What stock JAX gets through Landbridge, beside plain JAX and beside our server in one process, in one run.

    .venv/bin/python bench/stock_door.py [--rounds 5] [--only chained,latency] > results.jsonl

Each workload runs in a fresh client process, backends taking turns (ABAB), with the servers idle between. One JSON
line per measured process, and at the end one per figure with medians and ratios. CPU time is told for the client and
for each server process, so figures of a two-core machine can be compared. `floors` adds what gRPC alone costs at the
rate of the chained calls (bench/grpc_echo), and what TCP alone moves (bench/dataplane_benchmark).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import psutil

from local_cluster import add_only, chosen

ROOT = pathlib.Path(__file__).resolve().parents[1]
LANDBRIDGE = ROOT / "landbridge"


def base_env():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_", "XLA_FLAGS"))}
    env["PJRT_NPROC"] = "16"
    return env


class Plain:
    name = "plain"

    def env(self):
        return dict(base_env(), JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")

    def processes(self):
        return {}

    def close(self):
        pass


class Cluster:
    def __init__(self, name, *args):
        self.name = name
        self.state = tempfile.mkdtemp(prefix="lb-bench-")
        out = subprocess.run([LANDBRIDGE, "up", "--json", "--state", self.state, "--slices", "2", "--devices-per-worker",
                              "4", *args], capture_output=True, text=True, timeout=120)
        if out.returncode != 0:
            sys.exit(f"cannot start {name}: {out.stderr}")
        self.info = json.loads(out.stdout)

    def env(self):
        return dict(base_env(), JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=self.info["address"])

    def processes(self):
        out = {}
        for p in self.info["processes"]:
            try:
                me = psutil.Process(p["pid"])
                out[p["name"]] = me
                for i, child in enumerate(me.children(recursive=True)):
                    out[f"{p['name']}.child{i}"] = child
            except psutil.NoSuchProcess:
                pass
        return out

    def close(self):
        subprocess.run([LANDBRIDGE, "down", "--state", self.state], capture_output=True, timeout=60)


def cpu(process):
    """Processor seconds of a process, to the nanosecond."""
    try:
        return time.clock_gettime((~process.pid << 3) | 2)   # as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0


def peak_rss(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak(process):
    try:
        pathlib.Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    except OSError:
        pass


def peaks(servers):
    return {n: peak_rss(p) for n, p in servers.items() if p.is_running()}


def measure(backend, workload):
    """Runs one workload and looks at the servers when it says so: at its "begin" (idle, warm) and at later marks."""
    servers = backend.processes()
    client = subprocess.Popen([sys.executable, ROOT / "bench" / "workload.py", workload], env=backend.env(), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    before, after, rss, peak, result = {}, {}, {}, {}, None
    for line in client.stdout:
        said = json.loads(line)
        mark = said.get("mark")
        if mark is None:
            result = said
            continue
        if mark == "begin":
            for n, p in servers.items():
                reset_peak(p)
                rss[n] = p.memory_info().rss
            before = {n: cpu(p) for n, p in servers.items()}
        else:
            after = {n: cpu(p) for n, p in servers.items()}
            peak[mark] = peaks(servers)
        client.stdin.write("\n")
        client.stdin.flush()
    error = client.stderr.read()
    if client.wait() != 0 or result is None:
        return {"backend": backend.name, "workload": workload, "error": error[-800:]}
    out = {"backend": backend.name, **result}
    if "calls" in result:
        out["server_cpu_us_per_call"] = {n: round((after[n] - before[n]) / result["calls"] * 1e6, 2) for n in after}
        out["servers_cpu_us_per_call"] = round(sum(out["server_cpu_us_per_call"].values()), 2)
    if "array_mb" in result:
        # One worker holds the array; what it or the proxy needed beyond that was staging.
        for mark, values in peak.items():
            over = {n: (values[n] - rss[n]) / 1e6 for n in values}
            holder = max(over, key=over.get, default=None)
            if holder is not None:
                over[holder] -= result["array_mb"]
            out[f"{mark}_over_mb"] = {n: round(v, 1) for n, v in over.items()}
        if peak:
            out["beyond_array_mb"] = round(sum(max(v, 0) for v in out["end_over_mb"].values()), 1)
    return out


def run_json(command, timeout=600):
    if not command[0].exists():
        sys.exit(f"{command[0]} is not built: make bench builds it (--no-floors leaves it out)")
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def floors(rate):
    """What the parts below us cost in this run, at this many calls per second."""
    bin_ = ROOT / "build" / "release"
    out = run_json([bin_ / "bin" / "grpc_echo", "--rates", f"0,{rate:.0f}", "--calls", "20000"])
    out += run_json([bin_ / "bench" / "dataplane_benchmark", "--quick", "--rounds", "1"])
    return out


def train_lm(backend, mode):
    done = subprocess.run([sys.executable, ROOT / "examples" / "train_lm.py", "--preset", "tiny", "--mode", mode, "--steps",
                           "150", "--json"], env=backend.env(), capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        return {"backend": backend.name, "workload": f"train_lm_{mode}", "error": done.stderr[-800:]}
    got = json.loads(done.stdout.strip().splitlines()[-1])
    return {"backend": backend.name, "workload": f"train_lm_{mode}", "tokens_per_s": got["tokens_per_s"],
            "final_loss": got["losses"][-1]}


FIGURES = {  # workload -> figures
    "chained": ["calls_per_s", "client_cpu_us_per_call", "servers_cpu_us_per_call"], "args200": ["calls_per_s"],
    "latency": ["call_block_us_p50", "call_block_us_p99", "scalar_read_us_p50", "scalar_read_us_p99"],
    "bulk": ["put_gb_s", "get_gb_s"], "memory": ["beyond_array_mb"], "stages": ["speedup", "over_ideal"],
    "train_lm_fsdp": ["tokens_per_s"], "train_lm_pipeline": ["tokens_per_s"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    add_only(parser, FIGURES)
    parser.add_argument("--no-floors", action="store_true", help="leave out gRPC and TCP alone")
    parser.add_argument("--no-one-process", action="store_true", help="leave out our server in one process")
    args = parser.parse_args()
    wanted = chosen(parser, args, FIGURES)
    backends = [Plain(), Cluster("landbridge")]
    if not args.no_one_process:
        backends.append(Cluster("one_process", "--one-process"))
    results = {}
    try:
        for round_ in range(args.rounds):
            for workload in wanted:
                for backend in backends:
                    if workload in ("stages", "memory") and backend.name == "plain":
                        continue   # virtual compute is a target of our workers; there are no servers to look at
                    if workload == "memory" and backend.name == "one_process":
                        continue   # the array and its staging are in the same process
                    if workload.startswith("train_lm"):
                        if round_ >= 3:
                            continue
                        out = train_lm(backend, workload.removeprefix("train_lm_"))
                    else:
                        out = measure(backend, workload)
                    out["round"] = round_
                    print(json.dumps(out), flush=True)
                    results.setdefault((workload, backend.name), []).append(out)
    finally:
        for backend in backends:
            backend.close()
    chained = [r for r in results.get(("chained", "landbridge"), []) if "calls_per_s" in r]
    if chained and not args.no_floors:
        lines = floors(statistics.median(r["calls_per_s"] for r in chained))
        for line in lines:
            print(json.dumps(line), flush=True)
        echo = [l["server_cpu_us_per_call"] for l in lines if l.get("floor") == "grpc_echo" and l["rate"] > 0]
        ours = statistics.median(r["servers_cpu_us_per_call"] for r in chained)
        if echo:
            print(json.dumps({"figure": "chained.servers_cpu_us_per_call_beyond_echo", "landbridge": ours,
                              "grpc_echo": min(echo), "beyond": round(ours - min(echo), 2),
                              # a call is two requests: DestructArray, Execute; the plugin's execution is in it
                              "beyond_per_request": round((ours - min(echo)) / 2, 2)}), flush=True)
    for workload in wanted:
        for figure in FIGURES[workload]:
            line = {"figure": f"{workload}.{figure}"}
            for backend in backends:
                values = [r[figure] for r in results.get((workload, backend.name), []) if figure in r]
                if values:
                    line[backend.name] = round(statistics.median(values), 4)
            for peer in ("plain", "one_process"):
                if peer in line and "landbridge" in line and line[peer]:
                    line[f"ratio_to_{peer}"] = round(line["landbridge"] / line[peer], 4)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
