"""One measured process: runs the named workload on whatever backend the environment names, prints one JSON line.

Started by stock_door.py; also useful by hand:  landbridge run -- python bench/workload.py chained
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def mark(name):
    """Tells stock_door.py that the part it watches begins or ends; it answers when it has looked."""
    print(json.dumps({"mark": name}), flush=True)
    if not sys.stdin.isatty():
        sys.stdin.readline()


def cpu():
    """Processor seconds of this process, all threads."""
    return time.process_time()


def timed(run, rounds):
    """Median and worst seconds of `run`."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    times.sort()
    return times[len(times) // 2], times[-1]


def chained(calls=20_000, args=1):
    """Calls per second of a tiny jit whose result is its next argument; drained at the end."""
    if args == 1:
        f = jax.jit(lambda v: v + 1)
    else:
        f = jax.jit(lambda v, *more: v + 1)
    x = f(jnp.float32(0), *[jnp.float32(i) for i in range(args - 1)])
    more = [jnp.float32(i) + 0 for i in range(args - 1)]
    for _ in range(500):
        x = f(x, *more)
    first = float(x)
    mark("begin")
    start, used = time.perf_counter(), cpu()
    for _ in range(calls):
        x = f(x, *more)
    enqueued = time.perf_counter() - start
    x.block_until_ready()
    total, used = time.perf_counter() - start, cpu() - used
    mark("end")
    assert float(x) == first + calls
    return {"calls_per_s": calls / total, "enqueue_per_s": calls / enqueued, "calls": calls,
            "client_cpu_us_per_call": used / calls * 1e6}


def latency(rounds=1500):
    f = jax.jit(lambda v: v + 1)
    x = jax.block_until_ready(f(jnp.float32(0)))

    def blocked():
        f(x).block_until_ready()

    def scalar():
        assert float(f(x)) == 2.0

    for _ in range(100):
        blocked()
        scalar()
    out = {}
    for name, run in (("call_block", blocked), ("scalar_read", scalar)):
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        times.sort()
        out[name + "_us_p50"] = times[rounds // 2] * 1e6
        out[name + "_us_p99"] = times[rounds * 99 // 100] * 1e6
    return out


def bulk(mb=256, rounds=5):
    x = np.random.RandomState(0).randint(0, 1 << 30, mb << 18).astype(np.int32)
    out = {"mb": mb}

    def put():
        put.array = jax.block_until_ready(jax.device_put(x))

    put()
    median, _ = timed(put, rounds)
    out["put_gb_s"] = x.nbytes / median / 1e9
    f = jax.jit(lambda v: v + 1)

    def get():
        y = f(put.array).block_until_ready()   # a fresh array: JAX keeps the value of one that was read
        start = time.perf_counter()
        host = np.asarray(y)
        get.seconds.append(time.perf_counter() - start)
        assert host[0] == x[0] + 1 and host[-1] == x[-1] + 1

    get.seconds = []
    get()
    get.seconds = []
    for _ in range(rounds):
        get()
    out["get_gb_s"] = x.nbytes / sorted(get.seconds)[rounds // 2] / 1e9
    return out


def memory(mb=256):
    """One array there and back, three times, for the peak memory of every process: nothing else is alive."""
    f = jax.jit(lambda v: v + 1)
    jax.block_until_ready(f(jax.device_put(np.zeros(1 << 20, np.int32))))
    x = np.random.RandomState(0).randint(0, 1 << 30, mb << 18).astype(np.int32)
    mark("begin")
    for _ in range(3):
        y = jax.block_until_ready(jax.device_put(x))
        host = np.asarray(y)
        assert (host == x).all()
        y.delete()
        del y, host
    mark("end")
    return {"mb": mb, "array_mb": x.nbytes / 1e6}


def stages(microseconds=20_000, micro_batches=24):
    """Two virtual stages on two slices: overlapped (dispatch all) against one after the other."""
    import landbridge

    first = jax.devices()[0]
    second = next(d for d in jax.devices() if d.slice_index != first.slice_index)
    f = jax.jit(lambda v: landbridge.virtual_compute(v + 1, duration_us=microseconds))
    batches = [jax.device_put(np.full((256, 256), i, np.float32), first) for i in range(micro_batches)]
    jax.block_until_ready(f(jax.device_put(f(batches[0]), second)))

    def run(wait):
        start = time.perf_counter()
        outs = []
        for b in batches:
            a = f(b)
            if wait:
                a.block_until_ready()
            o = f(jax.device_put(a, second))
            if wait:
                o.block_until_ready()
            outs.append(o)
        jax.block_until_ready(outs)
        seconds = time.perf_counter() - start
        assert all(float(o[0, 0]) == i + 2 for i, o in enumerate(outs))
        return seconds

    overlapped, sequential = run(False), run(True)
    ideal = (micro_batches + 1) * microseconds / 1e6
    return {"overlapped_s": overlapped, "sequential_s": sequential, "speedup": sequential / overlapped,
            "over_ideal": overlapped / ideal, "stage_us": microseconds, "micro_batches": micro_batches}


WORKLOADS = {
    "chained": chained,
    "args200": lambda: chained(calls=3000, args=200),
    "latency": latency,
    "bulk": bulk,
    "memory": memory,
    "stages": stages,
}

if __name__ == "__main__":
    print(json.dumps({"workload": sys.argv[1], **WORKLOADS[sys.argv[1]]()}), flush=True)
