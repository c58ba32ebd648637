"""What the common order of launches over several workers is for, with real processes: threads of two sessions launch
collectives over groups of devices that overlap, in opposite orders. With the order all of them end, with the right values;
without it (workers of their own, --unsafe_unordered_launches) they wait for each other for ever.

So that nothing is left to chance, the first launches of all threads are held up: one shard of what each group starts from comes
late, A's on the first worker, B's on the second. Each worker has all that it needs for one of the two kinds, and is let go on
with the other when it has handed over as many of the first as it may, or, with the order, when it has all of both.
"""

import contextlib
import os
import re
import subprocess
import sys
import textwrap

import pytest

from admin import ask
from conftest import LANDBRIDGE, fresh_cluster
from servers import until

THREADS, FIRST = 8, 4  # of a session; launches of each kind that a thread makes before anything goes on
SESSIONS, ROUNDS = 2, 10_000

CLIENT = """
import sys, threading
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

threads, first, rounds = map(int, sys.argv[1:])
here = [d for d in jax.devices() if d.slice_index == 0]
there = next(d for d in jax.devices() if d.slice_index == 1)
go = threading.Event()

def over(name, devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
    def f(v):
        return jax.lax.psum(v, "x") / len(devices) + 1
    f.__name__ = f.__qualname__ = name
    mapped = jax.jit(jax.shard_map(f, mesh=sharding.mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    start = jax.ShapeDtypeStruct((2 * len(devices),), np.float32, sharding=sharding)
    return mapped.lower(start).compile(), sharding

# Devices 0 and 1 are on the first worker, 2 and 3 on the second.
groups = [over("a", here[0:3]), over("b", here[1:4]), over("c", [here[3], here[0]])]

@jax.jit
def late(v):
    def wait(v):
        go.wait()
        return v
    return jax.pure_callback(wait, jax.ShapeDtypeStruct(v.shape, v.dtype), v)

held = late(jax.device_put(np.zeros(2, np.float32), there))

def start_of(group, late_device):
    sharding = groups[group][1]
    shards = [jax.device_put(held if d == late_device else np.zeros(2, np.float32), d) for d in sharding.mesh.devices.flat]
    return jax.make_array_from_single_device_arrays((2 * len(shards),), sharding, shards)

starts = [start_of(0, here[1]), start_of(1, here[2]),
          jax.device_put(np.zeros(4, np.float32), groups[2][1])]
dispatched, failures = threading.Barrier(threads + 1), []

def run(order):
    try:
        held_up = [groups[g][0](starts[g]) for _ in range(first) for g in order if g < 2]
        dispatched.wait()
        values = [s for s in starts]
        for i in range(rounds):
            for g in order:
                values[g] = groups[g][0](values[g])
            if i % 20 == 0:
                jax.block_until_ready(values)
        for v in held_up:
            np.testing.assert_array_equal(np.asarray(v), np.ones(6, np.float32))
        for v in values:
            np.testing.assert_array_equal(np.asarray(v), np.full(v.shape, rounds, np.float32))
    except BaseException as error:
        failures.append(error)
        raise

workers = [threading.Thread(target=run, args=((0, 1, 2) if t % 2 == 0 else (2, 1, 0),)) for t in range(threads)]
for w in workers: w.start()
print("compiled", flush=True)
sys.stdin.readline()                          # the test has seen what it wants of the first launches
go.set()
dispatched.wait()
for w in workers: w.join()
assert not failures
print("right", flush=True)
"""


def addresses(cluster):
    """Of the first slice's workers, in the order of their devices (which is that of their registration)."""
    workers = cluster.status()["proxy"]["slices"][0]["workers"]
    return [cluster.processes[worker["name"]]["address"] for worker in workers]


def launches(address):
    """Of the programs over both workers: (name, state, what it waits for), as the worker says it."""
    grants = ask(address)["grants"]
    return [(launch.get("name", "").removeprefix("jit_"), launch["state"], {reason["what"] for reason in launch["waits_for"]})
            for grant in grants for launch in grant["queues"]["launches"]]


@contextlib.contextmanager
def clients(cluster, rounds):
    """Two sessions whose threads launch in opposite orders; killed at the end."""
    argv = [sys.executable, "-c", textwrap.dedent(CLIENT), THREADS, FIRST, rounds]
    processes = [subprocess.Popen(list(map(str, argv)), env=cluster.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for _ in range(SESSIONS)]
    try:
        for process in processes:
            line = process.stdout.readline()
            assert line == "compiled\n", process.communicate()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def let_go(processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.timeout(900)
def test_opposite_orders_over_workers_end_with_the_order():
    with fresh_cluster(slices=2, workers=2, devices=2) as c:
        at = addresses(c)
        with clients(c, ROUNDS // (SESSIONS * THREADS)) as processes:
            wanted = 2 * SESSIONS * THREADS * FIRST
            until(lambda: all(len(launches(at[w])) == wanted for w in range(2)), "all first launches at both workers")
            for worker, late in enumerate("ab"):
                for name, state, waits_for in launches(at[worker]):
                    assert state == "waiting"
                    assert waits_for == ({"input"} if name == late else {"turn"}), (worker, name, waits_for)
            let_go(processes)
            for process in processes:
                out, err = process.communicate(timeout=800)
                assert process.returncode == 0 and "right" in out, out[-500:] + err[-3000:]


def stalled(at):
    """Whether every launch that runs waits for a part that finds no room beside those that run on the other worker: nothing
    can go on then. A runs on the second worker only and B on the first; C, on devices that they leave free, may end or not."""
    for worker, runs in enumerate("ba"):
        rows = launches(at[worker])
        running = {name for name, state, _ in rows if state == "handed over"} - {"c"}
        no_room = {name for name, state, waits_for in rows if state == "runnable" and waits_for == {"room"}}
        held = {name for name, state, _ in rows if state not in ("handed over", "runnable")}
        if running != {runs} or "ab".replace(runs, "") not in no_room or held - {"c"}:
            return False
    return True


def test_opposite_orders_over_workers_stall_without_the_order():
    """The same clients; only the workers are told to ask nobody. The status says what waits for what, and killing the clients
    gets the workers back."""
    with fresh_cluster("--worker-arg=--unsafe_unordered_launches", slices=2, workers=2, devices=2) as c:
        at = addresses(c)
        assert "may wait for each other for ever" in c.log("worker-0-0")
        with clients(c, 1) as processes:
            def full(worker, runs):
                rows = launches(at[worker])
                return ({name for name, state, _ in rows if state == "handed over"} == {runs} and
                        any(waits_for == {"room"} for name, _, waits_for in rows if name == runs))
            until(lambda: full(0, "b") and full(1, "a"), "as many first launches as there is room for at both workers")
            let_go(processes)
            until(lambda: stalled(at), lambda: f"the stall: {launches(at[0])} and {launches(at[1])}")
            assert all(process.poll() is None for process in processes)
            why = subprocess.run([LANDBRIDGE, "why", "--state", c.state], capture_output=True, text=True, timeout=120)
            # Both lie on the second device of the first worker and on the first of the second. (The other device of either
            # may have no room for the moment, too: C is there.)
            for name, device, place in (("a", 1, "slice0/0"), ("b", 0, "slice0/1")):
                assert re.search(rf"launch jit_{name} of s\d+ on {place} devices 0,1, runnable for .*\n(?: +waits for .*\n)*? "
                                 rf"+waits for credit of device {device} of {place}: \d+ launches are placed there",
                                 why.stdout), why.stdout
        until(lambda: launches(at[0]) == launches(at[1]) == [], "the end of all launches of clients that are gone")
        pids = c.pids().values()
        done = subprocess.run([LANDBRIDGE, "down", "--state", c.state], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
