"""Questions to daemons, as `landbridge status` asks them (src/cluster/admin.h), whatever state the others are in."""

import json
import socket
import struct
import time

MAGIC, ADMIN_REQUEST, ADMIN_ANSWER = 0x3142424C, 10, 11  # src/env/frame.h, src/cluster/frame_types.h


def _table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class Daemon:
    """One daemon. A connection that only asks is closed by it after some seconds, so it is made anew before; a process
    that was held up for so long finds it closed and asks again."""

    def __init__(self, address, timeout=60):
        self.address = address
        self.timeout = timeout
        self.socket = None
        self.connected = -1e9

    def _connect(self):
        if time.monotonic() - self.connected > 2:
            self.close()
            host, port = self.address.rsplit(":", 1)
            self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=self.timeout)
            self.connected = time.monotonic()

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket, self.connected = None, -1e9

    def _read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the daemon closed the connection")
            data += more
        return data

    def ask(self, what="status", **more):
        """The answer to {"what": what}."""
        payload = json.dumps({"what": what, **more}).encode()
        try:
            answer = self._exchange(payload)
        except ConnectionError:
            self.close()
            answer = self._exchange(payload)
        assert answer["ok"], answer
        return answer["answer"]

    def _exchange(self, payload):
        self._connect()
        self.socket.sendall(struct.pack("<IIII", MAGIC, len(payload), crc32c(payload), ADMIN_REQUEST) + payload)
        magic, length, _, kind = struct.unpack("<IIII", self._read(16))
        assert (magic, kind) == (MAGIC, ADMIN_ANSWER)
        return json.loads(self._read(length))


def ask(address, what="status", timeout=60, **more):
    """One question. `address`: host:port."""
    daemon = Daemon(address, timeout)
    try:
        return daemon.ask(what, **more)
    finally:
        daemon.close()


class Links:
    """Bytes that the workers of a cluster pulled from each other (and from the proxy), and what their devices hold."""

    def __init__(self, cluster):
        self.cluster = cluster
        info = [p for p in cluster.status()["processes"] if p["name"].startswith("worker")]
        self.workers = [Daemon(p["address"]) for p in info]
        self.slices = [int(p["name"].split("-")[1]) for p in info]
        self.names = {}  # what a worker is called by its peers: another life for every grant
        self._ask()

    def _ask(self):
        answers = [worker.ask() for worker in self.workers]
        for i, status in enumerate(answers):
            self.names.update((grant["life"], i) for grant in status["grants"])
        return answers

    def bytes(self):
        """{(from, to): bytes}; workers by number, everything else is the proxy: -1."""
        seen = {}
        for i, status in enumerate(self._ask()):
            for link in status["data_plane"]["links"]:
                key = self.names.get(link["peer"], -1), i
                seen[key] = seen.get(key, 0) + link["bytes_received"]
        return seen

    def since(self, before):
        return {k: v - before.get(k, 0) for k, v in self.bytes().items() if v != before.get(k, 0)}

    def between_slices(self, since):
        """{slice: bytes that its workers sent to those of other slices}."""
        sent = dict.fromkeys(self.slices, 0)
        for (source, target), count in self.since(since).items():
            if source >= 0 and self.slices[source] != self.slices[target]:
                sent[self.slices[source]] += count
        return sent

    def held(self):
        """Bytes of arrays in the devices of all workers."""
        return sum(d["bytes_in_use"] for status in self._ask() for grant in status["grants"] for d in grant["devices"])
