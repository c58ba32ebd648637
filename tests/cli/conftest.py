"""The command-line tool with servers that only pretend: what it starts, says, passes on and cleans up.

The tool looks for the servers beside its own binary, so a copy of it in a folder with two scripts is all it takes.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import psutil
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Behaviour by flags: --die, --hang, --stubborn, --child, --unplaced. Like the real servers it writes its port file when
# it listens, and answers {"what": "status"} and {"what": "workers"} in one frame (magic, length, CRC-32C, type; then JSON).
SERVER = f"#!{sys.executable}\n" + textwrap.dedent("""\
    import json, os, signal, socket, struct, sys, threading, time
    flags = dict(arg[2:].split("=", 1) if "=" in arg else (arg[2:], "") for arg in sys.argv[1:])
    print("argv", *sys.argv, flush=True)
    if "die" in flags:
        print("fatal: the plugin does not load", flush=True)
        sys.exit(3)
    if "hang" in flags:
        time.sleep(1000)
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", int(flags["server_port"])))
    except OSError as error:
        print("fatal: port", flags["server_port"], "is in use:", error, flush=True)
        sys.exit(1)
    s.listen()
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in flags and os.fork() == 0:
        time.sleep(1000)
    path = flags["port_file"]
    open(path + ".new", "w").write("127.0.0.1:%d\\n" % s.getsockname()[1])
    os.rename(path + ".new", path)

    def crc32c(data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    MAGIC, REQUEST, ANSWER = 0x3142424C, 10, 11
    placed = "unplaced" not in flags
    status = {"slices": [{"index": 0, "type": "cpu:4", "placed": placed, "workers": [{"up": placed, "name": "w0"}]}]}

    def serve(connection):
        magic, length, _, kind = struct.unpack("<IIII", connection.recv(16, socket.MSG_WAITALL))
        assert (magic, kind) == (MAGIC, REQUEST)
        question = json.loads(connection.recv(length, socket.MSG_WAITALL))
        answers = {"status": status, "workers": {"expected": 1, "up": int(placed)}}
        answer = json.dumps({"ok": True, "answer": answers[question["what"]]}).encode()
        connection.sendall(struct.pack("<IIII", MAGIC, len(answer), crc32c(answer), ANSWER) + answer)
        connection.recv(1)

    while True:
        connection, _ = s.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()
    """)


class Tool:
    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state"
        built = ROOT / "build" / "release" / "bin" / "landbridge"
        assert built.exists(), f"{built} is missing: run make build"
        shutil.copy(built, folder / "landbridge")
        for name in ("landbridge-server", "landbridge-proxy", "landbridge-one"):
            (folder / name).write_text(SERVER)
            (folder / name).chmod(0o755)
        self.plugin = folder / "plugin.so"
        shutil.copy("/proc/self/exe", self.plugin)  # an ELF file; the pretended servers do not load it

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "LANDBRIDGE"))}
        env.update(LANDBRIDGE_PJRT_PLUGIN=str(self.plugin))
        env.update(extra)
        return env

    def __call__(self, *args, **extra):
        return subprocess.run([self.folder / "landbridge", *map(str, args)], env=self.environment(**extra),
                              capture_output=True, text=True, timeout=240)

    def start(self, *args, **extra):
        return subprocess.Popen([self.folder / "landbridge", *map(str, args)], env=self.environment(**extra),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def described(self):
        return json.loads((self.state / "cluster.json").read_text())

    def processes(self):
        """Processes that were started from our folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if any(str(self.folder) in arg for arg in process.cmdline()) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                pass
        return found


@pytest.fixture
def tool(tmp_path):
    made = Tool(tmp_path)
    yield made
    for process in made.processes():
        process.kill()
