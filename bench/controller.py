#!/usr/bin/env python3
"""The figures of the controller interface: a C++ driver (bench/driver) over real processes, no front door between.

    tools/build.sh dispatch_driver && .venv/bin/python bench/controller.py [--rounds 5] [--only dispatch,...] > results.jsonl

One JSON line per result. `cpu_us_per_op` is the CPU time of all processes, `load` what else ran on the machine at the time.
  dispatch   calls whose launches end at once (simulated workers, one process each): OpByOp, Sync, SyncLoop, Chained, Fused;
             1, 2, 4 workers of 1, 8, 64 devices
  spin       one worker that polls, as the driver does, for 200 us after each event: call and wait, simulated and CPU plugin
  plugin     the same on real workers with the CPU plugin, every sum checked; 1 and 2 workers of 1 device; one launch over both
  masking    steps of virtual duration t on 4 worker processes, the next one's argument the last one's result: the smallest t
             with 95 % (t95) and 50 % (METG) of the ideal rate. Simulated workers of 1 and 8 devices, and real ones with virtual
             compute (`plugin`)
  scale      32 processes that simulate 64 to 1,280 hosts of 8 devices: dispatches of 4 arguments and 2 outputs to one host, in
             turns, and to every host; least-squares fit over the number of devices
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from local_cluster import ROOT, add_only, chosen, plain_env

BIN = ROOT / "build" / "release" / "bin"
PATIENT = ("--lease_ms=20000", "--heartbeat_ms=1000")  # a machine of two cores is late now and then
FIGURES = ("dispatch", "spin", "plugin", "masking", "scale")


class Workers:
    """A resource manager and worker processes without a proxy: slices of one worker. `simulated`: workers per process."""

    def __init__(self, processes, devices, simulated=0, launch_us=0, spin_us=0, more=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lb-bench-"))
        self.processes = []
        # The servers look for the plugin's package in the python3 on PATH.
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**plain_env(), "LANDBRIDGE_LOG_LEVEL": "error", "PATH": path}
        slices = processes * max(simulated, 1)
        port_file = self.folder / "rm"
        self.start(BIN / "landbridge-server", "--node_type=resource_manager", "--server_port=0", f"--port_file={port_file}",
                   f"--instance_type=cpu:{devices}", f"--instance_count={slices}", *more)
        deadline = time.monotonic() + 30
        while not (port_file.exists() and port_file.read_text()):
            if time.monotonic() > deadline or self.processes[0].poll() is not None:
                self.close()
                sys.exit(f"the resource manager does not start; see {self.folder}")
            time.sleep(0.02)
        self.address = port_file.read_text().strip()
        join = f"--resource_manager_address={self.address}"
        more = (*more, f"--spin_us={spin_us}") if spin_us else more
        for number in range(processes):
            if simulated:
                self.start(BIN / "landbridge-simulated-workers", join, f"--workers={simulated}",
                           f"--first_worker={number * simulated}", f"--devices={devices}",
                           f"--launch_us={launch_us}", *more)
            else:
                self.start(BIN / "landbridge-server", join, "--server_port=0", f"--devices={devices}", *more)

    def start(self, *argv):
        with open(self.folder / f"{len(self.processes)}.log", "wb") as log:
            self.processes.append(subprocess.Popen(list(map(str, argv)), env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=log))

    def drive(self, *args):
        """The driver's results."""
        argv = [BIN / "dispatch_driver", f"--resource_manager_address={self.address}",
                f"--count=rm:{self.processes[0].pid}", *args]
        done = subprocess.run(list(map(str, argv)), env=self.env, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            sys.exit(f"the driver failed; logs of the servers in {self.folder}:\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def workers(*args, **kwargs):
    return contextlib.closing(Workers(*args, **kwargs))


def show(result):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


def dispatch(options):
    for count in (1, 2, 4):
        for devices in (1, 8, 64):
            with workers(count, devices, simulated=1) as cluster:
                for result in cluster.drive(f"--rounds={options.rounds}", f"--time_ms={options.time_ms}"):
                    show({"figure": "dispatch", **result})


def spin(options):
    for workers_spin_us in (0, 200):
        for simulated in (1, 0):
            with workers(1, 1, simulated=simulated, spin_us=workers_spin_us) as cluster:
                for result in cluster.drive(f"--rounds={options.rounds}", f"--time_ms={options.time_ms}", "--spin_us=200",
                                            "--modes=OpByOp,Sync,SyncLoop", *([] if simulated else ["--compiled"])):
                    show({"figure": "spin", "workers_spin_us": workers_spin_us, **result})


def plugin(options):
    for count, span in ((1, False), (2, False), (2, True)):
        with workers(count, 1) as cluster:
            for result in cluster.drive("--compiled", f"--rounds={options.rounds}", f"--time_ms={options.time_ms}",
                                        *(["--span"] if span else [])):
                show({"figure": "plugin", **result})


def masking(options):
    steps_us = (20, 35, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000)
    for engine, devices in (("simulated", 1), ("simulated", 8), ("plugin", 1)):
        reached = {}
        for step_us in steps_us:
            simulated = {"simulated": 1, "launch_us": step_us} if engine == "simulated" else {}
            with workers(4, devices, **simulated) as cluster:
                flags = [] if simulated else ["--compiled", f"--step_us={step_us}"]
                # All at once, and as many as take that long: or it would take the backlog of a far faster client to end.
                result, = cluster.drive("--modes=OpByOp", f"--rounds={options.rounds}", "--time_ms=600000",
                                        f"--operations={max(options.time_ms * 1000 // step_us, 50)}", *flags)
            efficiency = result["ops_per_s"] * step_us / 1e6
            reached[step_us] = efficiency
            show({"figure": "masking", **result, "engine": engine, "step_us": step_us, "efficiency": efficiency})
        at_least = lambda share: next((us for us in steps_us if all(e >= share for u, e in reached.items() if u >= us)), None)
        show({"summary": "masking", "engine": engine, "workers": 4, "devices_per_worker": devices,
              "t95_us": at_least(0.95), "metg_us": at_least(0.5), "load": os.getloadavg()[0]})


def fit(points):
    """Least squares y = a + b x, and R^2."""
    xs, ys = zip(*points)
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x in xs)
    base = mean_y - slope * mean_x
    left = sum((y - base - slope * x) ** 2 for x, y in points)
    return base, slope, 1 - left / sum((y - mean_y) ** 2 for y in ys)


def scale(options):
    measured = {}
    for each in (2, 4, 10, 20, 40):
        with workers(32, 8, simulated=each, more=PATIENT) as cluster:
            for result in cluster.drive("--modes=Scale", f"--rounds={options.rounds}", *PATIENT):
                show({"figure": "scale", **result})
                key = result["dispatch_to"], result["workers"] * result["devices_per_worker"]
                measured.setdefault(key, []).append(result)
    for to in sorted({to for to, _ in measured}):
        for what, pick in (("us_per_dispatch", lambda r: r["us_per_dispatch"]),
                           ("driver_cpu_us_per_dispatch", lambda r: r["cpu_us_per_dispatch"]["driver"])):
            points = [(devices, statistics.median(map(pick, results))) for (t, devices), results in sorted(measured.items())
                      if t == to]
            base, slope, r2 = fit(points)
            show({"summary": "scale", "dispatch_to": to, "what": what, "by_devices": dict(points), "base_us": base,
                  "us_per_1000_devices": slope * 1000, "r2": r2, "load": os.getloadavg()[0]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time-ms", type=int, default=1000, help="of a mode in a round")
    add_only(parser, FIGURES)
    options = parser.parse_args()
    for figure in chosen(parser, options, FIGURES):
        globals()[figure](options)


if __name__ == "__main__":
    main()
