"""Hand-made calls at the servers' ports, for what no stock client would send."""

import functools
import json
import queue
import socket
import struct
import subprocess
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from admin import ADMIN_ANSWER, ADMIN_REQUEST, MAGIC, crc32c
from conftest import ROOT

# --- The proxy's gRPC service, with the messages of our own .proto files.

SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
SESSION_HEADER = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
STORE_HEADER = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"


@functools.cache
def _pool():
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", f"-I{ROOT}/src", "--include_imports", f"--descriptor_set_out={out.name}",
                        "proto/ifrt_proxy/grpc_ifrt_service.proto", "proto/landbridge/cluster.proto",
                        "proto/landbridge/control.proto"], check=True, timeout=120)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def message(name, **fields):
    """A message of package xla.ifrt.proxy (or of a full name)."""
    full = name if "." in name else f"xla.ifrt.proxy.{name}"
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(full))(**fields)


class Door:
    """A client of the proxy's port."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address.removeprefix("grpc://"),
                                             [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.channel.close()

    def unary(self, method, request, answer="GrpcHostBufferDeleteResponse", timeout=60):
        call = self.channel.unary_unary(SERVICE + method, _bytes, type(message(answer)).FromString)
        return call(request, timeout=timeout)

    def store(self, chunks, session_id, handle, size, timeout=60, header=None):
        if header is None:
            header = message("GrpcHostBufferStoreMetadata", session_id=session_id, handle=handle,
                             buffer_size=size).SerializeToString()
        call = self.channel.stream_unary(SERVICE + "HostBufferStore", _bytes, bytes)
        metadata = [(STORE_HEADER, header)] if header else []
        return call(iter(chunks), metadata=metadata, timeout=timeout)

    def lookup(self, session_id, handle, timeout=60):
        call = self.channel.unary_stream(SERVICE + "HostBufferLookup", _bytes,
                                         type(message("GrpcHostBufferLookupResponse")).FromString)
        request = message("GrpcHostBufferLookupRequest", session_id=session_id, handle=handle)
        return b"".join(part.data for part in call(request, timeout=timeout))

    def session(self, requests, header=None, timeout=120):
        """Responses to the requests, as an iterator."""
        if header is None:
            version = message("IfrtProxyVersion", protocol_version=25, ifrt_serdes_version_number=3)
            header = message("GrpcIfrtSessionMetadata", version=version).SerializeToString()
        call = self.channel.stream_stream(SERVICE + "IfrtSession", _bytes, type(message("IfrtResponse")).FromString)
        return call(requests, metadata=[(SESSION_HEADER, header)] if header else [], timeout=timeout)


def _bytes(request):
    return request if isinstance(request, bytes) else request.SerializeToString()


class OwnSession:
    """A session of ours beside the stock client's."""

    def __init__(self, door):
        self.requests = queue.Queue()
        self.responses = door.session(iter(self.requests.get, None))
        self.next_op = 1
        init = self.call(init_request=message("InitRequest"))
        self.id = init.init_response.session_id

    def call(self, **fields):
        request = message("IfrtRequest", **fields)
        request.request_metadata.op_id = self.next_op
        self.next_op += 1
        self.requests.put(request)
        response = next(self.responses)
        assert response.response_metadata.op_id == request.request_metadata.op_id
        return response

    def close(self):
        self.requests.put(None)


def make_array(handle, dims):
    """MakeArrayFromHostBuffer of a float32 array on device 0, from the host buffer of the same number."""
    sharding = message("xla.ifrt.SingleDeviceShardingProto", device_id=0, memory_kind="device")
    request = message("MakeArrayFromHostBufferRequest", host_buffer_handle=handle, array_handle=handle)
    request.dtype.kind = 11    # F32
    request.shape.dims.extend(dims)
    request.sharding.serialized_sharding.type_name = "xla::ifrt::SingleDeviceSharding"
    request.sharding.serialized_sharding.data = sharding.SerializeToString()
    return request


# --- Frames between daemons (env/frame.h): magic, length, CRC-32C, type; then the payload.

def frame(kind, payload, magic=MAGIC, length=None, crc=None):
    return struct.pack("<IIII", magic, len(payload) if length is None else length,
                       crc32c(payload) if crc is None else crc, kind) + payload


def exchange(port, data, timeout=60):
    """Sends the bytes and returns everything that comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        try:
            s.sendall(data)
            back = b""
            while chunk := s.recv(65536):
                back += chunk
        except ConnectionResetError:
            pass
        return back


def ask_many(port, questions, timeout=60):
    """The answers of a daemon to questions that are sent all at once, in the order of the answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        s.sendall(b"".join(frame(ADMIN_REQUEST, json.dumps(question).encode()) for question in questions))
        answers = []
        reader = s.makefile("rb")    # recv gives what is there: MSG_WAITALL does not wait where there is a time limit
        for _ in questions:
            magic, length, crc, kind = struct.unpack("<IIII", reader.read(16))
            assert (magic, kind) == (MAGIC, ADMIN_ANSWER)
            payload = reader.read(length)
            assert len(payload) == length and crc == crc32c(payload)
            answers.append(json.loads(payload))
        return answers


def ask(port, question, timeout=60):
    """The answer of a daemon to a question, as `landbridge status` asks."""
    return ask_many(port, [question], timeout)[0]
