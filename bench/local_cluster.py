"""What the benchmarks share: a local cluster (up, scripts of stock JAX against it, down), and the option --only."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap

import psutil

# A benchmark that `timeout` or a person ends takes its cluster with it: `with` blocks and `finally` run.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

ROOT = pathlib.Path(__file__).resolve().parents[1]
LANDBRIDGE = ROOT / "landbridge"


# Every run compiles what it runs; the cache on disk has a benchmark of its own (compile_cache.py).
os.environ["LANDBRIDGE_COMPILE_CACHE"] = "off"


def add_only(parser, names):
    """The option --only: some of `names`; `chosen` reads it."""
    parser.add_argument("--only", default="", help="comma list of " + ", ".join(names))


def chosen(parser, args, names):
    """Those of `names` that --only asks for (all without it); an unknown one ends the program."""
    wanted = args.only.split(",") if args.only else list(names)
    for name in wanted:
        if name not in names:
            parser.error(f"--only={name}: one of {', '.join(names)}")
    return [name for name in names if name in wanted]


def plain_env():
    """The environment without what tells JAX where to run."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_", "XLA_FLAGS"))}


def quietly(ask):
    try:
        return ask()
    except psutil.Error:
        return None


class Cluster:
    """Slices of one worker; `args` go to `landbridge up`."""

    def __init__(self, slices, *args, devices=1):
        self.state = tempfile.mkdtemp(prefix="lb-bench-")
        out = subprocess.run([LANDBRIDGE, "up", "--json", "--state", self.state, "--slices", str(slices),
                              "--devices-per-worker", str(devices), *args], capture_output=True, text=True, timeout=180)
        if out.returncode != 0:
            sys.exit(f"cannot start a cluster: {out.stderr}")
        self.info = json.loads(out.stdout)
        self.address = self.info["address"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def env(self, **more):
        """Of a client."""
        return {**plain_env(), "JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": self.address, **more}

    def run(self, code, *args):
        """The JSON of the script's last line, or {"error": ...}."""
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], env=self.env(),
                              capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            return {"error": done.stderr[-1500:]}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def proxy(self):
        """What the proxy says of itself."""
        out = subprocess.run([LANDBRIDGE, "status", "--json", "--state", self.state], capture_output=True, text=True,
                             timeout=60)
        return json.loads(out.stdout)["proxy"]

    def proxy_bytes(self):
        return self.proxy()["tensor_bytes"]

    def processes(self):
        """Proxy and workers, as psutil shows them."""
        ours = [p for p in psutil.process_iter() if self.state in " ".join(quietly(p.cmdline) or ())]
        return [p for p in ours if quietly(p.name) in ("landbridge-proxy", "landbridge-server")]

    def close(self):
        subprocess.run([LANDBRIDGE, "down", "--state", self.state], capture_output=True, timeout=60)
