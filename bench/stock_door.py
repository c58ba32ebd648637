#!/usr/bin/env python3
"""What stock JAX gets through Landbridge, beside plain JAX and beside our server in one process, in one run.

    .venv/bin/python bench/stock_door.py [--rounds 5] [--only chained,latency] > results.jsonl

Each workload runs in a fresh client process, backends taking turns (ABAB), with the servers idle between. One JSON
line per measured process, and at the end one per figure with medians and ratios. CPU time is summed over the client
and over each server process, so figures of a two-core machine can be compared.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import psutil

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
    times = process.cpu_times()
    return times.user + times.system


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


def measure(backend, workload):
    servers = backend.processes()
    before = {n: cpu(p) for n, p in servers.items()}
    rss = {}
    for n, p in servers.items():
        reset_peak(p)
        rss[n] = p.memory_info().rss
    done = subprocess.run([sys.executable, ROOT / "bench" / "workload.py", workload], env=backend.env(),
                          capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        return {"backend": backend.name, "workload": workload, "error": done.stderr[-800:]}
    out = {"backend": backend.name, **json.loads(done.stdout.strip().splitlines()[-1])}
    out["server_cpu_s"] = {n: round(cpu(p) - before[n], 4) for n, p in servers.items() if p.is_running()}
    out["peak_over_idle_mb"] = {n: round((peak_rss(p) - rss[n]) / 1e6, 1) for n, p in servers.items() if p.is_running()}
    return out


def train_lm(backend, mode):
    done = subprocess.run([sys.executable, ROOT / "examples" / "train_lm.py", "--preset", "tiny", "--mode", mode, "--steps",
                           "30", "--json"], env=backend.env(), capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        return {"backend": backend.name, "workload": f"train_lm_{mode}", "error": done.stderr[-800:]}
    got = json.loads(done.stdout.strip().splitlines()[-1])
    return {"backend": backend.name, "workload": f"train_lm_{mode}", "tokens_per_s": got["tokens_per_s"],
            "final_loss": got["losses"][-1]}


FIGURES = {  # workload -> (figures, higher is better)
    "chained": ["calls_per_s"], "args200": ["calls_per_s"],
    "latency": ["call_block_us_p50", "call_block_us_p99", "scalar_read_us_p50", "scalar_read_us_p99"],
    "bulk": ["put_gb_s", "get_gb_s"], "stages": ["speedup", "over_ideal"],
    "train_lm_fsdp": ["tokens_per_s"], "train_lm_pipeline": ["tokens_per_s"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="comma list of " + ", ".join(FIGURES))
    parser.add_argument("--no-one-process", action="store_true", help="leave out our server in one process")
    args = parser.parse_args()
    chosen = [w for w in FIGURES if not args.only or w in args.only.split(",")]
    backends = [Plain(), Cluster("landbridge")]
    if not args.no_one_process:
        backends.append(Cluster("one_process", "--one-process"))
    results = {}
    try:
        for round_ in range(args.rounds):
            for workload in chosen:
                for backend in backends:
                    if workload == "stages" and backend.name == "plain":
                        continue   # virtual compute is a target of our workers
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
    for workload in chosen:
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
