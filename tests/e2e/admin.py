"""Asks a daemon directly, as `landbridge status` does, whatever state the others are in."""

import json
import socket
import struct

MAGIC, ADMIN_REQUEST, ADMIN_ANSWER = 0x3142424C, 10, 11  # src/env/frame.h, src/cluster/frame_types.h


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def ask(address, what="status", timeout=20, **more):
    """The answer to {"what": what}. `address`: host:port."""
    host, port = address.rsplit(":", 1)
    payload = json.dumps({"what": what, **more}).encode()
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(struct.pack("<IIII", MAGIC, len(payload), _crc32c(payload), ADMIN_REQUEST) + payload)

        def read(count):
            data = b""
            while len(data) < count:
                more_bytes = connection.recv(count - len(data))
                assert more_bytes, "the daemon closed the connection"
                data += more_bytes
            return data

        magic, length, _, kind = struct.unpack("<IIII", read(16))
        assert (magic, kind) == (MAGIC, ADMIN_ANSWER)
        answer = json.loads(read(length))
    assert answer["ok"], answer
    return answer["answer"]
