"""Python callbacks: functions of this process that programs on the cluster call while they run.

A program names a function by a number; whoever runs it sends the operands here on a gRPC stream of our own, on the
proxy's port, and waits for the results. The stream belongs to the client's session by a token that the session announced
when it was opened. Functions run on threads of this module, one for each call under way, so one that takes long holds up
only who needs its results. JAX in a function runs on this process's own CPU.

    frames: a byte that says what it is, numbers (little endian), then bytes up to the end
    from the server  1 ready
                     2 call      u64 call, u64 function, u32 device; operands, dense, one after the other
    to the server    1 results   u64 call; results, dense, one after the other
                     2 error     u64 call; text
"""
import atexit
import collections
import itertools
import logging
import queue
import secrets
import struct
import sys
import threading
import traceback
import weakref

import numpy as np

from landbridge import questions

logger = logging.getLogger(__name__)

TOKEN_KEY = "landbridge_host_calls"  # of a client's initialization data
_METADATA_KEY = "landbridge-host-calls-bin"
_METHOD = "/landbridge.HostCalls/Serve"

_READY, _CALL = 1, 2
_RESULTS, _ERROR = 1, 2
_CALL_HEAD = struct.Struct("<BQQI")
_ANSWER_HEAD = struct.Struct("<BQ")

CONNECT_TIMEOUT_S = 60
RECONNECT_PAUSE_S = 1.0
EXIT_TIMEOUT_S = 10  # for the threads of the stream
THREADS_MAX = 256  # calls under way at one time; more wait
ERROR_TEXT_MAX = 12_000

_current = None  # Server of the client that was made last
_thread = threading.local()


def in_callback():
    """Whether this thread runs a callback."""
    return getattr(_thread, "in_callback", False)


class Function:
    """What the number of a callback means."""

    def __init__(self, call, operands, results):
        self.call = call          # of numpy arrays; gives a sequence of array-likes
        self.operands = operands  # (shape, dtype) of each
        self.results = results

    def run(self, data):
        """Dense bytes to dense bytes."""
        return self._run(data, self.operands)

    def _run(self, data, operands):
        taken = sum(_bytes(*spec) for spec in operands)
        if len(data) != taken:
            raise RuntimeError(f"the program passed {len(data)} bytes where {taken} are taken")
        args, at = [], 0
        for shape, dtype in operands:
            size = _bytes(shape, dtype)
            args.append(_from_dense(data[at:at + size], shape, dtype))
            at += size
        return [_dense(np.asarray(value)) for value in self.values(args)]

    def values(self, args):
        """Array-likes, the results."""
        return self.call(*args)


class PartFunction(Function):
    """Gets what one device has of its operands; their dimensions come first, 8 bytes each."""

    def run(self, data):
        head = 8 * sum(len(shape) for shape, _ in self.operands)
        if len(data) < head:
            raise RuntimeError(f"the program passed {len(data)} bytes where the dimensions alone take {head}")
        dims = iter(np.frombuffer(data[:head], "<i8").tolist())
        return self._run(data[head:], [(tuple(itertools.islice(dims, len(shape))), dtype) for shape, dtype in self.operands])


# Of types with several values to a byte, the first of them in its lowest bits. In numpy's arrays each has a byte.
_PACKED_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def _bytes(shape, dtype):
    count = int(np.prod(shape, dtype=np.int64))
    return -(-count * _PACKED_BITS[dtype.name] // 8) if dtype.name in _PACKED_BITS else count * dtype.itemsize


def _from_dense(data, shape, dtype):
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.name not in _PACKED_BITS:
        return np.frombuffer(data, dtype, count).reshape(shape)
    bits = _PACKED_BITS[dtype.name]
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = np.frombuffer(data, np.uint8)[:, np.newaxis] >> places & (1 << bits) - 1
    return values.astype(np.uint8).reshape(-1)[:count].view(dtype).reshape(shape)


def _dense(value):
    """The array's bytes as programs have them, as an array of bytes."""
    if value.dtype.name not in _PACKED_BITS:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    bits = _PACKED_BITS[value.dtype.name]
    places = np.arange(0, 8, bits, dtype=np.uint8)
    values = np.zeros((_bytes(value.shape, value.dtype), len(places)), np.uint8)
    values.reshape(-1)[:value.size] = np.ascontiguousarray(value).reshape(-1).view(np.uint8) & (1 << bits) - 1
    return np.bitwise_or.reduce(values << places, axis=1)


class _Handle:
    """Lives as long as programs that name the function may be run; the compiled program holds it."""


class _Threads:
    """Runs each task at once: on a thread that waits for one, or on a new one."""

    def __init__(self):
        self._lock = threading.Lock()
        self._tasks = collections.deque()
        self._wake = threading.Condition(self._lock)
        self._idle = self._count = 0

    def run(self, task):
        with self._lock:
            self._tasks.append(task)
            if self._idle >= len(self._tasks) or self._count >= THREADS_MAX:
                self._wake.notify()
                return
            self._count += 1
        # A daemon: a callback that hangs does not keep the process from ending.
        threading.Thread(target=self._loop, name="landbridge-callback", daemon=True).start()

    def _loop(self):
        while True:
            with self._lock:
                self._idle += 1
                while not self._tasks:
                    self._wake.wait()
                self._idle -= 1
                task = self._tasks.popleft()
            task()
            del task


class Server:
    """Serves the functions of one client.

    Thread-safety: all methods from any thread.
    """

    def __init__(self, target):
        self.token = secrets.token_bytes(32)
        self._address = target.partition("://")[2]
        self._lock = threading.Lock()
        self._functions = {}
        self._last = 0
        self._threads = _Threads()
        self._ready = threading.Event()
        self._failure = None
        self._started = self._closed = False
        self._channel = None
        self._own = []
        self._stream = None
        self._retired = queue.SimpleQueue()
        self._wake = threading.Event()  # set at the end

    def register(self, function):
        """(number, handle): the function is called until the handle is gone and its last program is over."""
        self._connect()
        with self._lock:
            self._last += 1
            number = self._last
            self._functions[number] = function
        handle = _Handle()
        weakref.finalize(handle, self._retired.put, number).atexit = False
        return number, handle

    def functions(self):
        with self._lock:
            return len(self._functions)

    # ---------------------------------------------------------------- the stream

    def _connect(self):
        with self._lock:
            if not self._started:
                self._started = True
                self._own = [threading.Thread(target=self._serve, name="landbridge-callbacks", daemon=True),
                             threading.Thread(target=self._release, name="landbridge-callbacks-release", daemon=True)]
                for thread in self._own:
                    thread.start()
                atexit.register(self.close)
        if not self._ready.wait(CONNECT_TIMEOUT_S):
            raise RuntimeError(f"callbacks: no stream to the proxy at {self._address} after {CONNECT_TIMEOUT_S} s"
                               f"{': ' + self._failure if self._failure else ''}")

    def close(self):
        """At exit: what was dispatched still calls; then the stream ends, and with it the programs that hang in a call.

        Our threads must be gone before the interpreter is: one that is in C++ then would abort the process.
        """
        if current_client(self) is not None:
            try:
                import jax
                jax.effects_barrier()
            except Exception as error:  # JAX waits for it, too, and says so
                logger.debug("callbacks: %s", error)
        self._closed = True
        self._retired.put(None)
        self._wake.set()
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            self._channel.close()
        for thread in self._own:
            thread.join(EXIT_TIMEOUT_S)

    def _serve(self):
        import grpc
        self._channel = grpc.insecure_channel(self._address, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
        serve = self._channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)
        while not self._closed:
            answers = queue.SimpleQueue()
            try:
                self._stream = serve(iter(answers.get, None), metadata=((_METADATA_KEY, self.token),))
                for frame in self._stream:
                    self._on_frame(frame, answers)
                failure = "the server ended it"
            except grpc.RpcError as error:
                failure = error.details() or str(error.code())
            except Exception as error:  # the interpreter is going, or a frame that we cannot read
                failure = f"{type(error).__name__}: {error}"
            answers.put(None)
            self._ready.clear()
            self._failure = failure
            if self._closed:
                return
            logger.debug("the stream for callbacks broke: %s", failure)
            self._wake.wait(RECONNECT_PAUSE_S)

    def _on_frame(self, frame, answers):
        if frame[0] == _READY:
            self._ready.set()
            return
        if frame[0] != _CALL or len(frame) < _CALL_HEAD.size:
            logger.warning("the proxy sent a frame for callbacks that this version of the landbridge package cannot read")
            return
        _, call, number, _ = _CALL_HEAD.unpack_from(frame)
        self._threads.run(lambda: answers.put(self._answer(call, number, memoryview(frame)[_CALL_HEAD.size:])))

    def _answer(self, call, number, operands):
        _thread.in_callback = True
        try:
            with self._lock:
                function = self._functions.get(number)
            if function is None:
                raise RuntimeError(f"this client has no callback number {number}")
            parts = function.run(operands)
            return b"".join((_ANSWER_HEAD.pack(_RESULTS, call), *parts))
        except BaseException as error:  # also SystemExit: whoever raises it hears of it where the program was called
            text = _text_of(error)
            return _ANSWER_HEAD.pack(_ERROR, call) + text.encode("utf-8", "replace")
        finally:
            _thread.in_callback = False

    # ---------------------------------------------------------------- what is not needed any more

    def _release(self):
        """A function goes when every launch that was sent before its program was dropped is over."""
        while True:
            numbers = [self._retired.get()]
            while not self._retired.empty():
                numbers.append(self._retired.get())
            if self._closed:
                return
            client = current_client(self)
            if client is not None:
                try:
                    questions.ask(client, {"hostCallsOver": {}})
                except Exception as error:
                    logger.debug("callbacks: %s", error)
            del client
            with self._lock:
                for number in numbers:
                    self._functions.pop(number, None)


def _text_of(error):
    try:
        # Without the frames of this module.
        tb = error.__traceback__
        while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
            tb = tb.tb_next
        text = "".join(traceback.format_exception(type(error), error, tb))
    except Exception:  # an exception whose own text raises
        text = f"{type(error).__name__} (its text cannot be made)"
    if len(text) > ERROR_TEXT_MAX:
        half = ERROR_TEXT_MAX // 2
        text = f"{text[:half]}\n ... (cut) ...\n{text[-half:]}"
    return text


def make_server(target):
    """For the client that is about to be made; `use` makes it the one that programs use."""
    return Server(target)


def use(server):
    global _current
    _current = server


def current_client(server):
    """The client that `server` belongs to, while JAX has it."""
    xla_bridge = sys.modules.get("jax._src.xla_bridge")
    if xla_bridge is None or _current is not server:
        return None
    return xla_bridge._backends.get("proxy")


def server_of(client):
    """The Server of a client, or None: then it cannot have callbacks."""
    server = _current
    if server is None or client is None or current_client(server) is not client:
        return None
    return server
