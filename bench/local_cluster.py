"""A local cluster for a benchmark: up, scripts of stock JAX against it, down."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
LANDBRIDGE = ROOT / "landbridge"


class Cluster:
    """Slices of one worker with one device; `args` go to `landbridge up`."""

    def __init__(self, slices, *args):
        self.state = tempfile.mkdtemp(prefix="lb-bench-")
        out = subprocess.run([LANDBRIDGE, "up", "--json", "--state", self.state, "--slices", str(slices),
                              "--devices-per-worker", "1", *args], capture_output=True, text=True, timeout=120)
        if out.returncode != 0:
            sys.exit(f"cannot start a cluster: {out.stderr}")
        self.info = json.loads(out.stdout)
        self.address = self.info["address"]

    def run(self, code, *args):
        """The JSON of the script's last line, or {"error": ...}."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "PATHWAYS_", "XLA_FLAGS"))}
        env.update(JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=self.address)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], env=env, capture_output=True,
                              text=True, timeout=600)
        if done.returncode != 0:
            return {"error": done.stderr[-1500:]}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def proxy_bytes(self):
        out = subprocess.run([LANDBRIDGE, "status", "--json", "--state", self.state], capture_output=True, text=True)
        return json.loads(out.stdout)["proxy"]["tensor_bytes"]

    def close(self):
        subprocess.run([LANDBRIDGE, "down", "--state", self.state], capture_output=True, timeout=60)
