"""What a user sees when something is not there, not ready, or not what it should be."""

import contextlib
import http.server
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import threading

import pytest

from conftest import LANDBRIDGE
from servers import (BIN, ByHand, HELLO, assert_no_forbidden_words, client, free_port, run_client, until)


# ---------------------------------------------------------------- the client's address

def test_dead_address():
    port = free_port()
    code, _, err = run_client(f"grpc://127.0.0.1:{port}", timeout=2)
    assert code == 1
    assert f"cannot reach a Landbridge proxy at grpc://127.0.0.1:{port}" in err
    assert "Nothing listens at that address: is the cluster up?" in err
    assert "`landbridge status` shows local clusters and the logs of their servers" in err
    assert_no_forbidden_words(err)


def test_unknown_host():
    code, _, err = run_client("grpc://no-such-host.invalid:29000", timeout=2)
    assert code == 1 and "cannot reach a Landbridge proxy at grpc://no-such-host.invalid:29000" in err


@contextlib.contextmanager
def plain_tcp_server():
    """Accepts and says nothing."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


@contextlib.contextmanager
def http_server():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_the_port_of_a_web_server_is_not_a_proxy():
    with http_server() as port:
        code, _, err = run_client(f"grpc://127.0.0.1:{port}", timeout=2)
    assert code == 1
    assert f"cannot reach a Landbridge proxy at grpc://127.0.0.1:{port}" in err
    assert "Something listens there that is no Landbridge proxy" in err
    assert_no_forbidden_words(err)


@pytest.fixture(scope="module", autouse=True)
def client_of_a_silent_server():
    """(port, client). gRPC waits 20 s for an answer, so this one starts with the first test of the file; the last looks."""
    with plain_tcp_server() as port:
        process = client(f"grpc://127.0.0.1:{port}", timeout=2)
        yield port, process
        process.kill()
        process.wait()


def test_ports_of_other_servers_are_not_proxies():
    with ByHand() as hand:
        rm = hand.rm()
        worker_port = free_port()
        worker = hand.start("worker", "landbridge-server", f"--resource_manager_address={hand.rm_address}",
                            f"--server_port={worker_port}")
        worker.says("registering with the resource manager")
        proxy = hand.proxy()
        clients = [(server, client(f"grpc://127.0.0.1:{port}", timeout=2)) for server, port in (
            (rm, hand.rm_port), (worker, worker_port), (proxy, hand.admin_port()))]
        for server, process in clients:
            _, err = process.communicate(timeout=180)
            assert process.returncode == 1 and "Something listens there that is no Landbridge proxy" in err, err
            server.says(r"W landbridge-\w+\] closed 127.0.0.1:\d+: .* it is a gRPC client. JAX clients connect to the "
                        r"proxy's port: JAX_BACKEND_TARGET=grpc://HOST:29000")
        code, out, err = run_client(hand.target)
        assert out == "sum 10.0 on 2 devices\n", err


def test_late_proxy():
    """The client comes first, says what it waits for, and goes on when the proxy is there."""
    with ByHand() as hand:
        process = client(hand.target, timeout=60)
        line = process.stderr.readline()
        while "waiting for a Landbridge proxy" not in line:
            assert line, "the client has ended"
            line = process.stderr.readline()
        assert f"at {hand.target} (nothing listens there (connection refused)); gives up after 60 s" in line
        hand.rm()
        hand.worker()
        hand.proxy()
        out, err = process.communicate(timeout=180)
        assert out == "sum 10.0 on 2 devices\n", err


def test_proxy_without_a_resource_manager():
    with ByHand() as hand:
        proxy = hand.proxy()
        proxy.says("listening for clients on")
        code, _, err = run_client(hand.target, timeout=2)
        assert code == 1
        assert "this proxy has no devices yet: it waits for the resource manager at " + hand.rm_address in err
        assert "connection refused" in err and f"[log: {proxy.log_path}]" in err
        assert_no_forbidden_words(err)
        # And one that is patient gets through.
        process = client(hand.target, timeout=60)
        proxy.says("Session s2 .* opened")
        hand.rm()
        hand.worker()
        out, err = process.communicate(timeout=180)
        assert out == "sum 10.0 on 2 devices\n", err


@pytest.mark.parametrize("who", ["worker", "proxy"])
@pytest.mark.parametrize("what", [plain_tcp_server, http_server])
def test_resource_manager_address_that_is_something_else(who, what):
    with ByHand() as hand, what() as port:
        hand.rm_port = port
        server = hand.proxy() if who == "proxy" else hand.worker("--devices=2")
        server.says(rf"waiting for the resource manager at 127.0.0.1:{port} \(what listens there is no resource manager "
                    r"of Landbridge, or one of another version: ")
        assert "connected to the resource manager" not in server.log()
        assert server.log().count("waiting for the resource manager at") <= 3, server.log()


def test_resource_manager_address_that_is_a_worker():
    with ByHand() as hand:
        hand.rm()
        port = free_port()
        hand.start("first", "landbridge-server", f"--resource_manager_address={hand.rm_address}",
                   f"--server_port={port}").says("registering with the resource manager")
        hand.rm_port = port
        hand.worker().says(r"waiting for the resource manager at .* \(another process of Landbridge listens there, no "
                           "resource manager")


# ---------------------------------------------------------------- flags and ports

@pytest.mark.parametrize("binary, flag, near", [
    ("landbridge-proxy", "--server_prot=1", "--server_port"),
    ("landbridge-proxy", "--resource_manager_adress=h:1", "--resource_manager_address"),
    ("landbridge-server", "--instance_typ=cpu:4", "--instance_type"),
    ("landbridge-server", "--pjrt-plugin=x", "--pjrt_plugin"),
])
def test_unknown_flag(binary, flag, near):
    done = subprocess.run([BIN / binary, flag], capture_output=True, text=True, timeout=180)
    name = flag.partition("=")[0]
    assert done.returncode == 2
    assert done.stderr.startswith(f"{binary}: unknown flag {name}: did you mean {near}"), done.stderr


@pytest.mark.parametrize("arg, name", [("--proxy-arg", "proxy"), ("--worker-arg", "worker-0-0"), ("--rm-arg", "resource-manager")])
def test_unknown_flag_through_the_tool(tmp_path, arg, name):
    done = subprocess.run([LANDBRIDGE, "up", "--state", tmp_path, f"{arg}=--serverport=1"], capture_output=True, text=True,
                          timeout=180)
    assert done.returncode == 1
    assert f"{name} exited with code 2 before it was ready. Its log is {tmp_path}/logs/{name}.log" in done.stderr
    assert "unknown flag --serverport: did you mean --server_port?" in done.stderr


def test_flags_without_effect_say_so_once():
    with ByHand() as hand:
        rm = hand.rm("--gcs_scratch_location=gs://bucket/x", "--enable_gcs_olm=false")
        proxy = hand.proxy("--gcs_scratch_location=gs://bucket/x", "--num_elastic_slices=1", "--enable_metrics_collection=true")
        for server, flags in ((rm, ("gcs_scratch_location", "enable_gcs_olm")),
                              (proxy, ("gcs_scratch_location", "num_elastic_slices", "enable_metrics_collection"))):
            server.says("listening for clients|resource manager on")
            for flag in flags:
                assert server.log().count(f"] --{flag}=") == 1, server.log()
                assert f"--{flag}=" in server.log() and "has no effect: " in server.log()


@pytest.mark.parametrize("who", ["rm", "worker", "proxy"])
def test_busy_port(who):
    with socket.socket() as s, ByHand() as hand:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        if who == "proxy":
            hand.proxy_port = port
            server = hand.proxy()
        elif who == "rm":
            hand.rm_port = port
            server = hand.rm()
        else:
            server = hand.start("worker", "landbridge-server", f"--resource_manager_address={hand.rm_address}",
                                f"--server_port={port}", "--devices=2")
        assert server.exit_code() == 1
        assert f"cannot listen on 127.0.0.1:{port}: the port is in use by another process" in server.log()
        assert "0: any free" in server.log()


def test_busy_port_through_the_tool(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        done = subprocess.run([LANDBRIDGE, "up", "--state", tmp_path, "--port", str(port)], capture_output=True, text=True,
                              timeout=180)
    assert done.returncode == 1
    assert f"proxy exited with code 1 before it was ready. Its log is {tmp_path}/logs/proxy.log" in done.stderr
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use by another process" in done.stderr


# ---------------------------------------------------------------- plugins

OLD_PLUGIN = r"""
#include <stddef.h>
struct Version { size_t struct_size; void* extension_start; int major_version, minor_version; };
struct Api { size_t struct_size; void* extension_start; struct Version version; void* functions[512]; };
static struct Api api = { sizeof(struct Api), NULL, { sizeof(struct Version), NULL, 0, 40 }, { 0 } };
const void* GetPjrtApi(void) { return &api; }
"""


def make_plugin(folder, source):
    path = folder / "plugin.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True, timeout=60)
    return path


def plugin_case(folder, kind):
    """(path, what the error says)."""
    if kind == "missing":
        return folder / "none.so", "does not exist"
    if kind == "text":
        path = folder / "plugin.so"
        path.write_text("not a library")
        return path, "is not a shared object"
    if kind == "library":
        return make_plugin(folder, "int answer(void) { return 42; }"), \
            "is a shared library but not a PJRT plugin: it has no function GetPjrtApi"
    return make_plugin(folder, OLD_PLUGIN), "has C API version 0.40, but Landbridge needs 0."


@pytest.mark.parametrize("kind", ["missing", "text", "library", "old"])
def test_wrong_plugin_through_the_tool(tmp_path, kind):
    path, what = plugin_case(tmp_path, kind)
    state = tmp_path / "state"
    done = subprocess.run([LANDBRIDGE, "run", "--state", state, "--pjrt_plugin", path, "--", "true"], capture_output=True,
                          text=True, timeout=180)
    assert done.returncode == 1
    assert f"{path} {what}" in done.stderr, done.stderr
    assert "pip install" in done.stderr or "--pjrt_plugin" in done.stderr or "install a plugin" in done.stderr
    if kind in ("library", "old"):   # found by a worker
        assert f"Its log is {state}/logs/worker-0-0.log" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", ["missing", "text", "library", "old"])
def test_wrong_plugin_of_a_worker_by_hand(tmp_path, kind):
    path, what = plugin_case(tmp_path, kind)
    what = {"missing": "no such file", "text": "cannot be loaded as a PJRT plugin"}.get(kind, what)
    with ByHand() as hand:
        worker = hand.worker(f"--pjrt_plugin={path}", "--devices=2")
        assert worker.exit_code() == 1
        assert str(path) in worker.log() and what in worker.log(), worker.log()


def test_missing_plugin_of_the_proxy():
    with ByHand() as hand:
        proxy = hand.proxy("--pjrt_plugin=/no/such/plugin.so")
        assert proxy.exit_code() == 1
        assert "/no/such/plugin.so" in proxy.log() and "--pjrt_plugin" in proxy.log(), proxy.log()


@pytest.mark.parametrize("kind", ["text", "library", "old"])
def test_wrong_plugin_of_the_proxy_fails_compiles(tmp_path, kind):
    """Only compiling needs it: that fails with a text that names the plugin; everything else works."""
    path, what = plugin_case(tmp_path, kind)
    what = {"text": "cannot be loaded as a PJRT plugin"}.get(kind, what)
    with ByHand() as hand:
        hand.rm()
        hand.worker()
        proxy = hand.proxy(f"--pjrt_plugin={path}")
        proxy.says("compiler process 0: the compiler process cannot work: ")
        code, out, err = run_client(hand.target, """
            import jax, numpy as np
            x = jax.device_put(np.arange(4.0), jax.devices()[1])
            print(np.asarray(x), flush=True)
            jax.jit(lambda v: v + 1)(x)
            """)
        assert code == 1 and out == "[0. 1. 2. 3.]\n", err
        assert f"the compiler process cannot work: " in err and str(path) in err and what in err, err
        assert f"[log: {proxy.log_path}]" in err
        assert_no_forbidden_words(err)


# ---------------------------------------------------------------- versions

ONE_BUILD = "all processes of a cluster must come from one build"


def test_worker_of_another_version():
    with ByHand() as hand:
        hand.rm()
        worker = hand.worker(version="0.0.7")
        worker.says(f"the resource manager refuses this worker: worker worker has version 0.0.7, the resource manager has "
                    rf"version \S+: {ONE_BUILD}")
        assert worker.process.poll() is None      # an upgrade of the other side cures it
        hand.worker(name="good")
        hand.proxy()
        code, out, err = run_client(hand.target)
        assert out == "sum 10.0 on 2 devices\n", err


def test_proxy_of_another_version():
    with ByHand() as hand:
        hand.rm()
        hand.worker()
        proxy = hand.proxy(version="0.0.7")
        proxy.says(rf"refused: the proxy has version 0.0.7, the resource manager has version \S+: {ONE_BUILD}")
        code, _, err = run_client(hand.target, timeout=2)
        assert code == 1
        assert "this proxy has no devices yet" in err and "the proxy has version 0.0.7" in err and ONE_BUILD in err
        assert f"[log: {proxy.log_path}]" in err
        assert "started with status OK" not in proxy.log()


def test_resource_manager_of_another_version():
    with ByHand() as hand:
        rm = hand.rm(version="0.0.7")
        worker, proxy = hand.worker(), hand.proxy()
        worker.says(f"the resource manager has version 0.0.7: {ONE_BUILD}")
        proxy.says(f"the resource manager has version 0.0.7: {ONE_BUILD}")
        # The cure: the right one takes its place, nobody else is started again.
        assert rm.stop()
        hand.rm()
        code, out, err = run_client(hand.target)
        assert out == "sum 10.0 on 2 devices\n", err


# ---------------------------------------------------------------- any order

@pytest.mark.parametrize("order", list(itertools.permutations(("rm", "worker", "proxy"))), ids="-".join)
def test_servers_converge_in_any_order(order):
    """Each that must wait says for what; then a client (started before the last server) gets its answer."""
    with ByHand() as hand:
        up = []
        for name in order:
            if name == order[-1]:
                process = client(hand.target, timeout=60)
            server = getattr(hand, name)()
            if name == "rm":
                server.says("resource manager on")
            elif "rm" not in up:
                server.says(f"waiting for the resource manager at {hand.rm_address}")
            else:
                server.says("connected to the resource manager")
            up.append(name)
        out, err = process.communicate(timeout=180)
        assert out == "sum 10.0 on 2 devices\n", err
        proxy = hand.servers["proxy"]
        proxy.says(rf"IFRT proxy server started with status OK on 127.0.0.1:{hand.proxy_port}: 1 slice\(s\) of cpu:2, 2 devices")
        proxy.says(r"slice0: unplaced -> placed on \S+ with 1 worker\(s\)")
        assert "--resource_manager_address=" + hand.rm_address in hand.servers["worker"].log()   # its own argv
        for name in ("proxy", "worker", "rm"):    # a worker that is told to stop gives its proxy time to leave
            assert hand.servers[name].stop(), f"{name} does not end:\n{hand.servers[name].log()}"


def test_a_launch_waits_for_its_worker():
    """Devices are there as soon as their slices are declared; work waits for the worker, and says so in the log."""
    with ByHand() as hand:
        hand.rm()
        proxy = hand.proxy()
        process = client(hand.target, timeout=60)
        proxy.says("Session s1 .* opened")
        hand.worker()
        out, err = process.communicate(timeout=180)
        assert out == "sum 10.0 on 2 devices\n", err


def test_two_proxies_share_the_slices_of_one_resource_manager():
    """--virtual_slices: each takes what it asks for; one that comes too late waits, says so, and gets the next free slice."""
    with ByHand() as hand:
        hand.rm("--instance_count=2")
        for name in ("worker-a", "worker-b"):
            hand.worker(name=name)
        proxies = []
        for i in range(3):
            hand.proxy_port = free_port()
            proxies.append((hand.start(f"proxy-{i}", "landbridge-proxy", f"--resource_manager_address={hand.rm_address}",
                                       f"--server_port={hand.proxy_port}", "--virtual_slices=cpu:2"), hand.target))
            proxies[i][0].says("started with status OK")
            if i < 2:
                proxies[i][0].says("slice0: unplaced -> placed")
        for _, target in proxies[:2]:
            code, out, err = run_client(target)
            assert out == "sum 10.0 on 2 devices\n", err
        waiting = client(proxies[2][1], timeout=60)
        proxies[2][0].says("Session s1 .* opened")
        assert "slice0: unplaced -> placed" not in proxies[2][0].log()
        assert proxies[0][0].stop()
        proxies[2][0].says("slice0: unplaced -> placed")
        out, err = waiting.communicate(timeout=180)
        assert out == "sum 10.0 on 2 devices\n", err


def test_a_port_that_never_answers(client_of_a_silent_server):
    port, process = client_of_a_silent_server
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert f"cannot reach a Landbridge proxy at grpc://127.0.0.1:{port}" in err
    assert "Something listens there that is no Landbridge proxy" in err
    assert f"waiting for a Landbridge proxy at grpc://127.0.0.1:{port} (something listens there" in err   # meanwhile
    assert_no_forbidden_words(err)
