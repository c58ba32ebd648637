import json
import os
import pathlib
import pty
import signal
import sys
import time

import psutil
import pytest


def until(condition, what, seconds=90):
    """Waits for a condition that another process brings about; fails with its name after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return value


def test_help_names_every_command(tool):
    text = tool("--help").stdout
    for command in ("run", "up", "down", "status", "devices", "restart", "version"):
        assert f"\n  {command} " in text
    assert "--devices-per-worker" in tool("run", "--help").stdout
    assert tool("version").stdout.startswith("landbridge 0.")


@pytest.mark.parametrize("args, text", [
    (("run",), "give the command behind `--`"),
    (("run", "--slices", "0", "--", "true"), "--slices is 0, but must lie between 1 and"),
    (("run", "--slices", "x", "--", "true"), "--slices"),
    (("run", "--bogus", "--", "true"), "--bogus"),
    (("up", "--", "true"), "only `run` takes a command"),
    (("up", "--port", "70000"), "--port is 70000"),
    (("run", "--pjrt_plugin", "/no/such.so", "--", "true"), "/no/such.so does not exist"),
    (("run", "--pjrt_plugin", "/etc/passwd", "--", "true"), "/etc/passwd is not a shared object"),
    (("up", "--on-worker-loss", "cry"), "--on-worker-loss"),
    ((), "subcommand"),
])
def test_wrong_arguments(tool, args, text):
    done = tool(*args)
    assert done.returncode in (1, 2) and text in done.stderr + done.stdout, done.stderr + done.stdout
    assert not tool.processes()


def test_run_sets_the_clients_environment_and_passes_output_and_exit_code(tool):
    done = tool("run", "--slices", 2, "--state", tool.state, "--", "sh", "-c", "env; echo noise >&2; exit 7")
    assert done.returncode == 7
    lines = done.stdout.splitlines()
    address = [line for line in lines if line.startswith("JAX_BACKEND_TARGET=grpc://127.0.0.1:")]
    assert address and "JAX_PLATFORMS=proxy" in lines and "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS=true" in lines
    assert "noise" in done.stderr
    logs = {p.name: p.read_text() for p in (tool.state / "logs").iterdir()}
    assert set(logs) == {"resource-manager.log", "proxy.log", "worker-0-0.log", "worker-1-0.log"}
    assert "--instance_type=cpu:4 --instance_count=2" in logs["resource-manager.log"]
    assert f"--pjrt_plugin={tool.plugin}" in logs["worker-1-0.log"]
    assert not tool.processes()


def test_run_keeps_a_users_list_of_platforms(tool):
    done = tool("run", "-q", "--", "sh", "-c", "echo $JAX_PLATFORMS", JAX_PLATFORMS="proxy,cpu")
    assert (done.stdout, done.stderr) == ("proxy,cpu\n", "")


def test_a_command_that_does_not_exist(tool):
    done = tool("run", "--", "no-such-command")
    assert done.returncode == 127 and "cannot run no-such-command" in done.stderr
    assert not tool.processes()


@pytest.mark.parametrize("arg, name", [("--worker-arg", "worker-0-0"), ("--proxy-arg", "proxy"), ("--rm-arg", "resource-manager")])
def test_a_server_that_dies_at_start_is_named_with_its_log(tool, arg, name):
    done = tool("up", "--state", tool.state, "--start-timeout", 3600, f"{arg}=--die=1")    # it does not wait for that
    assert done.returncode == 1
    assert f"{name} exited with code 3 before it was ready" in done.stderr
    assert f"{tool.state}/logs/{name}.log" in done.stderr and "the plugin does not load" in done.stderr
    assert not tool.processes() and not (tool.state / "cluster.json").exists()


def test_a_server_that_never_listens(tool):
    done = tool("up", "--state", tool.state, "--start-timeout", 2, "--worker-arg=--hang=1")
    assert done.returncode == 1 and "gave up after 2 s waiting for worker-0-0" in done.stderr
    assert not tool.processes()


def test_workers_that_are_never_placed(tool):
    done = tool("up", "--state", tool.state, "--start-timeout", 2, "--proxy-arg=--unplaced=1")
    assert done.returncode == 1
    assert "waiting for the workers to be placed and reached by the proxy (0 of 1 are)" in done.stderr
    assert "worker-0-0.log" in done.stderr and not tool.processes()


def test_busy_port(tool):
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        done = tool("up", "--state", tool.state, "--port", port)
    assert done.returncode == 1 and f"port {port} is in use" in done.stderr and "proxy.log" in done.stderr


def test_missing_servers(tool):
    (tool.folder / "landbridge-proxy").unlink()
    done = tool("up", "--state", tool.state)
    assert done.returncode == 1 and "landbridge-proxy is missing; build it with `make build`" in done.stderr


def test_up_status_down(tool):
    done = tool("up", "--json", "--state", tool.state, "--slices", 2)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["address"].startswith("grpc://127.0.0.1:") and answer["state"] == str(tool.state)
    assert [p["name"] for p in answer["processes"]] == ["resource-manager", "proxy", "worker-0-0", "worker-1-0"]
    assert all(psutil.pid_exists(p["pid"]) and pathlib.Path(p["log"]).exists() for p in answer["processes"])

    again = tool("up", "--state", tool.state)
    assert again.returncode == 1 and "already runs in" in again.stderr

    status = json.loads(tool("status", "--json", "--state", tool.state).stdout)
    assert status["running"] and all(p["alive"] for p in status["processes"])
    assert status["slices"] == [{"slice": 0, "placed": True, "type": "cpu:4", "workers": "w0"}]
    assert "worker-1-0" in tool("status", LANDBRIDGE_STATE=str(tool.state)).stdout

    assert tool("down", "--state", tool.state).returncode == 0
    assert not tool.processes()
    gone = tool("status", "--json", "--state", tool.state)
    assert gone.returncode == 3 and json.loads(gone.stdout) == {"running": False, "state": str(tool.state)}
    assert tool("down", "--state", tool.state).returncode == 0  # again: no error


def test_one_process(tool):
    answer = json.loads(tool("up", "--json", "--state", tool.state, "--slices", 2, "--one-process").stdout)
    assert [p["name"] for p in answer["processes"]] == ["proxy"]
    assert "--instance_type=cpu:4 --instance_count=2" in (tool.state / "logs" / "proxy.log").read_text()
    assert "landbridge-one" in psutil.Process(answer["processes"][0]["pid"]).cmdline()[1]
    tool("down", "--state", tool.state)


def test_each_cluster_has_a_secret_of_its_own(tool):
    """All its servers know it; by the environment, since everybody can read command lines."""
    secrets = []
    for state in (tool.folder / "a", tool.folder / "b"):
        processes = json.loads(tool("up", "--json", "--state", state).stdout)["processes"]
        known = {psutil.Process(p["pid"]).environ().get("LANDBRIDGE_CLUSTER_SECRET", "") for p in processes}
        assert len(processes) == 3 and len(known) == 1
        secrets += known
        assert not any(secrets[-1] in arg for p in processes for arg in psutil.Process(p["pid"]).cmdline())
        tool("down", "--state", state)
    assert len(set(secrets)) == 2 and all(len(s) == 32 for s in secrets)


def test_exports_can_be_evaluated(tool):
    lines = tool("up", "--state", tool.state).stdout.splitlines()
    assert lines[0] == "export JAX_PLATFORMS=proxy"
    assert lines[1].startswith("export JAX_BACKEND_TARGET=grpc://127.0.0.1:")
    tool("down", "--state", tool.state)


def test_clusters_side_by_side(tool):
    states = [tool.folder / "a", tool.folder / "b"]
    answers = [json.loads(tool("up", "--json", "--state", s).stdout) for s in states]
    assert answers[0]["address"] != answers[1]["address"]
    tool("down", "--state", states[0])
    assert json.loads(tool("status", "--json", "--state", states[1]).stdout)["running"]
    tool("down", "--state", states[1])
    assert not tool.processes()


def test_a_killed_worker_is_started_again(tool):
    tool("up", "--state", tool.state)
    pid = lambda: tool.described()["processes"][2]["pid"]
    first = pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: pid() != first, "a new worker")
    second = pid()
    assert tool("restart", "--state", tool.state, "worker-0-0").returncode == 0
    assert pid() != second
    wrong = tool("restart", "--state", tool.state, "worker-7-0")
    assert wrong.returncode == 1 and "the workers are worker-0-0" in wrong.stderr
    tool("down", "--state", tool.state)


def test_a_killed_worker_is_left_alone_when_asked(tool):
    tool("up", "--state", tool.state, "--on-worker-loss", "continue")
    os.kill(tool.described()["processes"][2]["pid"], signal.SIGKILL)
    until(lambda: tool.described()["processes"][2]["ended"], "the loss in cluster.json")
    status = tool("status", "--state", tool.state)
    assert status.returncode == 0 and "was killed by signal 9" in status.stdout
    tool("down", "--state", tool.state)


def test_losing_the_proxy_ends_the_cluster(tool):
    tool("up", "--state", tool.state)
    os.kill(tool.described()["processes"][1]["pid"], signal.SIGKILL)
    until(lambda: not tool.processes(), "the end of all")
    log = (tool.state / "logs" / "supervisor.log").read_text()
    assert "proxy was killed by signal 9" in log and "proxy.log" in log


@pytest.mark.parametrize("name, index", [("proxy", 1), ("worker-0-0", 2)])
def test_a_crash_under_run_ends_the_command_and_says_why(tool, name, index):
    run = tool.start("run", "--state", tool.state, "--", "sleep", "1000")
    until((tool.state / "cluster.json").exists, "a running cluster")
    os.kill(tool.described()["processes"][index]["pid"], signal.SIGSEGV)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 70
    assert f"{name} was killed by signal 11" in errors and f"logs/{name}.log" in errors
    assert not tool.processes()


INTERRUPTED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def test_ctrl_c_is_the_commands_business(tool):
    run = tool.start("run", "-q", "--", "python3", "-c", INTERRUPTED)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert output == "interrupted\n" and run.returncode == 5
    assert not tool.processes()


def test_ctrl_c_at_a_terminal_reaches_the_command_once(tool):
    code = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)
print("interrupts:", len(seen), flush=True)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(tool.folder / "landbridge", ["landbridge", "run", "-q", "--", sys.executable, "-c", code],
                  tool.environment())
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"interrupts:" not in output or not output.endswith(b"\n"):
        output += os.read(terminal, 1000)
    assert b"interrupts: 1" in output, output
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert not tool.processes()


def test_sigterm_ends_the_command_too(tool):
    run = tool.start("run", "-q", "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM
    assert not tool.processes()


def test_kill_9_leaves_no_orphans(tool):
    run = tool.start("run", "-q", "--", "sh", "-c", f"echo ready; exec sleep 1000 # {tool.folder}")
    assert run.stdout.readline() == "ready\n"
    assert len(tool.processes()) >= 4
    run.kill()
    run.communicate()
    until(lambda: not tool.processes(), "no orphans")


def test_kill_9_of_the_supervisor_leaves_no_orphans(tool):
    tool("up", "--state", tool.state)
    os.kill(tool.described()["supervisor_pid"], signal.SIGKILL)
    until(lambda: not tool.processes(), "no orphans")
    assert tool("status", "--state", tool.state).returncode == 3
    assert tool("up", "--state", tool.state).returncode == 0  # the folder can be used again
    tool("down", "--state", tool.state)


def test_what_a_server_has_started_ends_with_it(tool):
    tool("up", "--state", tool.state, "--proxy-arg=--child=1", "--worker-arg=--stubborn=1")
    done = tool("down", "--state", tool.state)
    assert done.returncode == 0
    assert not tool.processes()


def test_interrupted_up_leaves_nothing(tool):
    up = tool.start("up", "--state", tool.state, "--worker-arg=--hang=1")
    until(lambda: len(tool.processes()) >= 4, "a starting cluster")
    up.send_signal(signal.SIGINT)
    _, errors = up.communicate(timeout=120)
    assert up.returncode == 1 and "interrupted" in errors
    assert not tool.processes()
