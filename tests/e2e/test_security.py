"""The statements of SECURITY.md, tried out: what a faulty or careless client, or a stranger at a port, can do.

Everything here ends with the same question: does the cluster still serve everybody else?
"""

import os
import random
import re
import socket
import struct
from concurrent import futures

import grpc
import jax
import numpy as np
import psutil
import pytest

import wire
from conftest import fresh_cluster
from servers import ByHand, alone, until
from wire import Door, OwnSession, make_array, message


@pytest.fixture
def still_serves(cluster):
    """After the test: the same processes, no object left of the test, and this process's own session works."""
    alone(cluster)
    pids = {p["name"]: p["pid"] for p in cluster.status()["processes"]}
    yield
    assert float(jax.jit(lambda v: v + 1)(1.0)) == 2.0
    alone(cluster)
    after = cluster.status()
    assert {p["name"]: p["pid"] for p in after["processes"]} == pids
    assert all(p["alive"] and p["starts"] == 1 for p in after["processes"])


def rss(cluster, name):
    return psutil.Process(cluster.pid(name)).memory_info().rss


def code_of(error):
    return error.value.code()


def port_of(address):
    return int(address.rpartition(":")[2])


# ---------------------------------------------------------------- the proxy's port: gRPC

def test_versions_outside_the_window(cluster, still_serves):
    def version(protocol, serdes):
        return message("IfrtProxyVersion", protocol_version=protocol, ifrt_serdes_version_number=serdes)

    with Door(cluster.address) as door:
        for low, high in ((1, 9), (99, 120)):
            request = message("GrpcGetVersionRequest", min_version=version(low, 0), max_version=version(high, 3))
            with pytest.raises(grpc.RpcError) as e:
                door.unary("GetVersion", request, "GrpcGetVersionResponse")
            assert code_of(e) == grpc.StatusCode.INVALID_ARGUMENT
            text = e.value.details()
            assert f"The client speaks protocol {low} to {high}" in text and "this server speaks protocol 15 to 25" in text
            assert "Use a jaxlib that fits" in text
        request = message("GrpcGetVersionRequest", min_version=version(10, 0), max_version=version(99, 99))
        answer = door.unary("GetVersion", request, "GrpcGetVersionResponse").version
        assert (answer.protocol_version, answer.ifrt_serdes_version_number) == (25, 5)
        # One who does not ask but claims.
        header = message("GrpcIfrtSessionMetadata", version=version(7, 0)).SerializeToString()
        with pytest.raises(grpc.RpcError) as e:
            next(door.session(iter([]), header))
        assert code_of(e) == grpc.StatusCode.INVALID_ARGUMENT and "protocol 15 to 25" in e.value.details()


def test_malformed_messages_of_every_method(cluster, still_serves):
    """Bytes that are no message: an error for that call."""
    garbage = random.Random(1).randbytes(300)
    with Door(cluster.address) as door:
        for method in ("GetVersion", "HostBufferDelete", "HostBufferReadFromDisk"):
            with pytest.raises(grpc.RpcError) as e:
                door.unary(method, garbage)
            assert code_of(e) == grpc.StatusCode.INTERNAL, (method, e.value)     # gRPC itself: "Unable to parse request"
        for method in ("IfrtSession", "HostBufferStore"):
            for header in (b"", garbage):
                with pytest.raises(grpc.RpcError) as e:
                    if method == "IfrtSession":
                        next(door.session(iter([]), header))
                    else:
                        door.store([], 1, 1, 1, header=header)
                assert code_of(e) == grpc.StatusCode.INVALID_ARGUMENT
                assert "without its metadata header" in e.value.details()
        with pytest.raises(grpc.RpcError):
            next(door.session(iter([garbage])))
        with pytest.raises(grpc.RpcError) as e:
            door.unary("NoSuchMethod", b"")
        assert code_of(e) == grpc.StatusCode.UNIMPLEMENTED


def test_requests_that_make_no_sense(cluster, still_serves):
    """Each gets its error; the session goes on."""
    with Door(cluster.address) as door:
        session = OwnSession(door)
        fields = [f.name for f in message("IfrtRequest").DESCRIPTOR.oneofs_by_name["request"].fields]
        assert len(fields) >= 30
        for name in fields:
            if name == "init_request":
                continue
            empty = message("IfrtRequest")
            getattr(empty, name).SetInParent()
            response = session.call(**{name: getattr(empty, name)})
            status = response.response_metadata.status
            assert status.code in (0, 3, 9, 12), (name, status)     # OK, INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED
        unknown = session.call()
        assert unknown.response_metadata.status.code == 12
        for handle in (0, 1, 2**48 + 10**6, 2**64 - 1):
            response = session.call(check_future_request=message("CheckFutureRequest", future_handle=handle))
            assert response.response_metadata.status.code == 3
        ready = session.call(check_value_ready_request=message("CheckValueReadyRequest", value_handles=[5, 6]))
        assert ready.response_metadata.status.code == 3 and "Unknown array handle: 5" in ready.response_metadata.status.message
        session.close()


def test_sizes_that_cannot_be(cluster, still_serves):
    """Announced lengths are believed only as far as bytes come: nothing is allocated for them."""
    before = rss(cluster, "proxy")
    data = message("GrpcHostBufferStoreRequest", data=b"abcd")
    with Door(cluster.address) as door:
        session = OwnSession(door)

        def ready(handle, dims):
            made = session.call(make_array_from_host_buffer_request=make_array(handle, dims))
            waited = session.call(check_value_ready_request=message("CheckValueReadyRequest", value_handles=[handle]))
            return made.response_metadata.status.code, waited.response_metadata.status

        door.store([data], session.id, 99, 4)
        assert ready(99, [1]) == (0, message("tensorflow.StatusProto"))
        # A refused call would cost a stock client its session: these are drained, and the array is the error.
        for handle, size in enumerate((-1, 2**62, 2**46 + 1), start=100):
            door.store([data], session.id, handle, size)
            _, status = ready(handle, [1])
            assert status.code == 3 and "bytes" in status.message, (size, status)
        for handle, size, sent in ((200, 2**45, [data]), (201, 2, [data]), (202, 3, [])):
            try:
                door.store(sent, session.id, handle, size)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            _, status = ready(handle, [1])
            assert status.code == 3, (size, status)
        # Shapes that no machine holds, with a buffer or without one.
        for handle, dims in ((300, [2**62]), (301, [2**31, 2**31]), (302, [-1]), (303, [1] * 100)):
            code, status = ready(handle, dims)
            assert code == 3 and status.code == 3, (dims, status)
        session.close()
    assert rss(cluster, "proxy") - before < 16 << 20


def test_a_message_that_is_announced_and_does_not_come(cluster, still_serves):
    """gRPC's length prefix says 4 GiB; memory follows what arrives."""
    before = rss(cluster, "proxy")

    def http2(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def literal(name, value):   # HPACK, never indexed, no Huffman
        return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value

    open_sockets = []
    for method in ("GetVersion", "HostBufferDelete", "IfrtSession"):
        headers = b"".join(literal(n, v) for n, v in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", (wire.SERVICE + method).encode()),
            (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
        s = socket.create_connection(("127.0.0.1", port_of(cluster.address)), timeout=60)
        open_sockets.append(s)
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"") + http2(1, 4, 1, headers) +
                  http2(0, 0, 1, b"\x00" + b"\xff" * 4 + b"abc"))
        assert s.recv(1)
    assert float(jax.jit(lambda v: v + 1)(3.0)) == 4.0
    assert rss(cluster, "proxy") - before < 16 << 20
    for s in open_sockets:
        s.close()


def test_host_buffers_of_foreign_sessions(cluster, still_serves):
    """Session ids cannot be guessed; with a wrong one nothing of another session can be read, written or dropped."""
    with Door(cluster.address) as door:
        victim = OwnSession(door)
        door.store([message("GrpcHostBufferStoreRequest", data=b"secret")], victim.id, 7, 6)
        guesses = [0, 1, 2, victim.id - 1, victim.id + 1, victim.id ^ (1 << 63)]
        for guess in guesses:
            for attempt in (lambda: door.lookup(guess, 7),
                            lambda: door.unary("HostBufferDelete", message("GrpcHostBufferDeleteRequest", session_id=guess, handle=7)),
                            lambda: door.store([message("GrpcHostBufferStoreRequest", data=b"x")], guess, 8, 1),
                            lambda: door.unary("HostBufferReadFromDisk", message(
                                "GrpcHostBufferReadFromDiskRequest", metadata=message(
                                    "GrpcHostBufferStoreMetadata", session_id=guess, handle=9, buffer_size=1)))):
                with pytest.raises(grpc.RpcError) as e:
                    attempt()
                assert code_of(e) in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)   # no shared directory here
        # An upload is no result: not even its own session reads it back.
        with pytest.raises(grpc.RpcError) as e:
            door.lookup(victim.id, 7)
        assert code_of(e) == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as e:
            door.store([message("GrpcHostBufferStoreRequest", data=b"forged")], victim.id, 7, 6)
        assert code_of(e) == grpc.StatusCode.ALREADY_EXISTS
        ids = []
        for _ in range(8):
            other = OwnSession(door)
            ids.append(other.id)
            other.close()
        assert len(set(ids)) == 8 and all(i > 2**32 for i in ids)      # random 64-bit numbers
        victim.close()


def test_arrays_and_executables_of_other_sessions(cluster, still_serves):
    """Handles are per session: those of this process's stock client mean nothing in another session."""
    mine = jax.device_put(np.arange(1000, dtype=np.float32), jax.devices()[0])
    mine.block_until_ready()
    with Door(cluster.address) as door:
        session = OwnSession(door)
        for handle in list(range(1, 300)) + [2**48 + i for i in range(100)]:
            response = session.call(check_value_ready_request=message("CheckValueReadyRequest", value_handles=[handle]))
            assert response.response_metadata.status.code == 3
            response = session.call(delete_array_request=message("DeleteArrayRequest", array_handle=[handle]))
            response = session.call(loaded_executable_destruct_request=message(
                "LoadedExecutableDestructRequest", loaded_executable_handle=handle))
        session.close()
    np.testing.assert_array_equal(np.asarray(mine), np.arange(1000, dtype=np.float32))


# ---------------------------------------------------------------- the framed ports

@pytest.fixture(scope="module")
def ports(cluster):
    """(name of the process, port) of the resource manager, a worker's control port, and the proxy's questions."""
    addresses = {p["name"]: p["address"] for p in cluster.info["processes"]}
    admin = (cluster.state / "ports" / "proxy.admin").read_text().strip()
    return [("resource-manager", port_of(addresses["resource-manager"])), ("worker-0-0", port_of(addresses["worker-0-0"])),
            ("proxy", port_of(admin))]


BAD_FRAMES = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", r"bad magic number\): it speaks HTTP"),
    "a bad magic number": (wire.frame(1, b"abc", magic=0xDEADBEEF), "bad magic number"),
    "an oversize length": (wire.frame(1, b"abc", length=(64 << 20) + 1), "announced a frame of 67108865 bytes; the limit is"),
    "the largest length": (wire.frame(1, b"abc", length=0xFFFFFFFF), "announced a frame of 4294967295 bytes"),
    "a wrong checksum": (wire.frame(1, b"abc", crc=1), r"damaged on the way \(checksum\)"),
    "an unknown type": (wire.frame(4711, b"abc"), "makes no sense here"),
    "a type of the other direction": (wire.frame(wire.ADMIN_ANSWER, b"{}"), "makes no sense here"),
    "garbage in a known type": (wire.frame(1, b"\xff" * 40), "makes no sense|a worker's report"),
    "garbage in a hello": (wire.frame(20, b"\xff" * 40), "makes no sense"),
    "a control frame without a hello": (wire.frame(22, b"abc"), "makes no sense"),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_malformed_frames_at_each_port(cluster, ports, still_serves, what):
    """Costs the sender its connection, and a line in the log names the sender and what was wrong."""
    data, said = BAD_FRAMES[what]
    for name, port in ports:
        length = len(cluster.log(name))
        before = rss(cluster, name)
        assert wire.exchange(port, data) == b""
        until(lambda: re.search(r"closed 127\.0\.0\.1:\d+: .*(" + said + ")", cluster.log(name)[length:]),
              lambda: f"{said!r} in the log of {name}: {cluster.log(name)[length:]}")
        assert rss(cluster, name) - before < 8 << 20


def test_random_bytes_at_each_port(cluster, ports, still_serves):
    random_ = random.Random(7)
    for name, port in ports + [("proxy", port_of(cluster.address))]:
        for _ in range(30):
            wire.exchange(port, random_.randbytes(random_.randint(16, 2000)))
        # Frames that are well-formed outside only.
        for _ in range(30):
            wire.exchange(port, wire.frame(random_.randint(0, 30), random_.randbytes(random_.randint(0, 500))) +
                          wire.frame(4711, b""))


def test_silent_connections_are_closed(cluster, ports, still_serves):
    """Nobody holds a connection for ever without saying what it is for (5 s)."""
    with futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda p: wire.exchange(p[1], b""), ports)) == [b"", b"", b""]


def test_questions_that_are_none(cluster, ports):
    for name, port in ports:
        for question in ("text", 7, {}, {"what": 3}, {"what": "no such thing"}, {"what": "log_level", "level": "loud"}):
            answer = wire.ask(port, question)
            assert answer["ok"] is False and answer["code"] == 3 and answer["error"]
        answer = wire.ask(port, {"what": "x" * (70 << 10)})
        assert answer["ok"] is False and "at most" in answer["error"]
        assert wire.ask(port, {"what": "version"})["ok"] is True


def test_a_stranger_is_no_proxy_of_a_worker(cluster, ports, still_serves):
    """A control stream needs the grant's secret: one who only knows the port gets a refusal and no lease is disturbed."""
    name, port = ports[1]
    status = wire.ask(port, {"what": "status"})["answer"]
    incarnation = int(status["incarnation"][1:])
    version = status["version"]
    for secret in (b"", b"0" * 16, os.urandom(16)):
        hello = message("landbridge.ControlHello", version=version, life=4711, incarnation=incarnation)
        hello.grant.slice, hello.grant.term, hello.grant.count, hello.grant.secret = 0, 1 << 40, 1, secret
        back = wire.exchange(port, wire.frame(20, hello.SerializeToString()))
        magic, length, _, kind = struct.unpack("<IIII", back[:16])
        assert (magic, kind) == (wire.MAGIC, 21)
        welcome = message("landbridge.ControlWelcome")
        welcome.ParseFromString(back[16:16 + length])
        assert welcome.refusal != 0 and welcome.text
    grants = wire.ask(port, {"what": "status"})["answer"]["grants"]
    assert [g["grant"] for g in grants] == [g["grant"] for g in status["grants"]]


# ---------------------------------------------------------------- where servers listen

@pytest.mark.parametrize("who", ["rm", "worker", "proxy"])
def test_loopback_unless_told_otherwise(who):
    with ByHand() as hand:
        flags = ("--devices=2",) if who == "worker" else ()
        server = getattr(hand, who)("--listen_address=0.0.0.0", *flags)
        assert server.exit_code() in (1, 2)
        assert "is reachable from other machines and the connection is not encrypted: add --insecure_network" in server.log()
        server = getattr(hand, who)("--listen_address=0.0.0.0", "--insecure_network", *flags)
        server.says(r"W landbridge-\w+\] listening beyond loopback without encryption")


def test_every_port_of_a_cluster_is_on_loopback(cluster):
    for name, pid in cluster.pids().items():
        listening = [c for c in psutil.Process(pid).net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
        assert listening, name
        assert all(c.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for c in listening), (name, listening)


def test_the_cluster_secret_is_in_no_command_line(cluster):
    secrets = psutil.Process(cluster.pid("resource-manager")).environ().get("LANDBRIDGE_CLUSTER_SECRET", "")
    assert len(secrets) == 32
    for pid in cluster.pids().values():
        assert secrets not in " ".join(psutil.Process(pid).cmdline())
    for name in cluster.pids():
        assert secrets not in cluster.log(name)


def test_without_a_secret_the_log_says_so():
    with ByHand() as hand:
        hand.rm().says("no cluster secret: whoever can reach this port can forge leases")
