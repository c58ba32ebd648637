"""Order and overlap: what runs when its input is there, whoever else waits; and what the policies promise."""

import collections
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from admin import ask
from conftest import LONG_LEASE, fresh_cluster
from servers import until
from test_faults import finish, go, wait_ready

SCRIPT = """
import functools, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
import landbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

D = jax.devices()
of_slice = lambda s: [d for d in D if d.slice_index == s]

@functools.cache
def slow(ms, **hints):
    "A program that takes so long on its device."
    options = {"compiler_options": landbridge.hints(**hints)} if hints else {}
    return jax.jit(lambda v: landbridge.virtual_compute(v * 2 + 1, duration_us=ms * 1000), **options)

def await_stdin():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def worker_grant(cluster, name):
    """What a worker says about the lease that it serves, asked directly."""
    return ask(cluster.processes[name]["address"])["grants"][0]


def wait_until_idle(cluster):
    def idle():
        queues = [worker_grant(cluster, name)["queues"] for name in cluster.processes if name.startswith("worker")]
        return all(q["launches_total"] == 0 and q["makes_total"] == 0 for q in queues)
    until(idle, "the end of all launches")


def test_a_chain_over_three_slices_ends_without_client_and_proxy():
    """What has been dispatched needs neither: A -> B -> C run to their end while both are stopped, and so does another
    chain on the slice of A alone."""
    with fresh_cluster(*LONG_LEASE, slices=3, devices=1) as c:
        p = c.start(SCRIPT + """
f, g = slow(1500), slow(200)
x = [jax.device_put(np.arange(64, dtype=np.float32), of_slice(s)[0]) for s in range(3)]
jax.block_until_ready([f(v) for v in x] + [g(x[0])])            # loaded everywhere
a = f(x[0])
alone = g(g(g(x[0])))
b = f(jax.device_put(a, of_slice(1)[0]))
z = f(jax.device_put(b, of_slice(2)[0]))
await_stdin()
want = np.arange(64, dtype=np.float32)
for v in (a, b, z):
    want = want * 2 + 1
    np.testing.assert_array_equal(np.asarray(v), want)
np.testing.assert_array_equal(np.asarray(alone), np.arange(64, dtype=np.float32) * 8 + 7)
print("right", flush=True)
""")
        wait_ready(p)
        # Dispatched: the last stage's worker holds its launch, which waits for three seconds of work elsewhere.
        until(lambda: worker_grant(c, "worker-2-0")["queues"]["launches_total"] > 0, "C, before its input is there")
        assert worker_grant(c, "worker-0-0")["queues"]["launches_total"] > 0
        stopped = [p.pid, c.pid("proxy")]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_until_idle(c)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        go(p)
        assert "right" in finish(p)


def test_ready_work_passes_work_that_waits_for_a_remote_input(cluster):
    done = cluster.script(SCRIPT + """
one, other = of_slice(0)[0], of_slice(1)[0]
remote, quick = slow(3000), jax.jit(lambda v: v + 1)
x, y = jax.device_put(np.float32(1), one), jax.device_put(np.float32(5), other)
jax.block_until_ready((remote(x), quick(y)))
b = quick(jax.device_put(remote(x), other))    # B: its input is 3 s away
c = quick(y)                                   # C: submitted later, ready at once, same device
assert float(c) == 6
assert not b.is_ready()
assert float(b) == 4
print("passed")
""")
    assert "passed" in done.stdout


# Programs with collectives on overlapping groups of one slice, launched by threads in opposite orders; each result is
# checked at the end.
OPPOSITE_ORDERS = SCRIPT + """
rounds = int(sys.argv[1])
def group(devices):
    mesh = Mesh(np.array(devices), ("x",))
    f = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x") / len(devices) + 1, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    return f, NamedSharding(mesh, P("x"))
d = of_slice(0)
groups = [group(d[0:3]), group(d[1:4]), group([d[2], d[0]])]
ready = threading.Barrier(2)
failures = []
def run(order):
    try:
        values = [jax.device_put(np.zeros(6, np.float32), sharding) for _, sharding in groups]
        for g in order:
            values[g] = groups[g][0](values[g])
        jax.block_until_ready(values)
        ready.wait()
        for i in range(rounds):
            for g in order:
                values[g] = groups[g][0](values[g])
            if i % 100 == 0:
                jax.block_until_ready(values)
                print("round", i, flush=True)
        for v in values:
            np.testing.assert_array_equal(np.asarray(v), np.full(6, rounds + 1, np.float32))
    except Exception as error:
        failures.append(error)
        raise
threads = [threading.Thread(target=run, args=(order,)) for order in ([0, 1, 2], [2, 1, 0])]
for t in threads: t.start()
for t in threads: t.join()
assert not failures
print("all right", flush=True)
"""


def start_opposite_orders(cluster, rounds):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(OPPOSITE_ORDERS), str(rounds)], env=cluster.env(),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(900)
def test_opposite_orders_of_overlapping_groups_never_stall(cluster):
    """Two sessions with two threads each: 10,000 rounds in all."""
    for client in [start_opposite_orders(cluster, 2500) for _ in range(2)]:
        out, err = client.communicate(timeout=800)
        assert client.returncode == 0, out[-500:] + err[-3000:]
        assert "all right" in out


# A pipeline in GPipe's order: a loop of all forward launches, then a loop of all backward ones.
PIPELINE = SCRIPT + """
stages, micro_batches, mib = 3, 12, 4
devices = [of_slice(s)[0] for s in range(stages)]

def forward(x):
    x = landbridge.virtual_compute(x, duration_us=20_000)
    return x + 1, jnp.tile(x * 3, mib << 17)        # what the next stage gets, and what backward needs later
def backward(kept, g):
    g = landbridge.virtual_compute(g, duration_us=20_000)
    return g + kept[:2] + kept[-2:]

forward = jax.jit(forward, compiler_options=landbridge.hints(phase="forward"))
backward = jax.jit(backward, compiler_options=landbridge.hints(phase="backward"))

def step(base):
    kept = []
    outs = []
    for m in range(micro_batches):
        x = jax.device_put(np.array([base + m, m], np.float32), devices[0])
        row = []
        for s in range(stages):
            y, k = forward(x)
            row.append(k)
            if s + 1 < stages:
                x = jax.device_put(y, devices[s + 1])
        kept.append(row)
        outs.append(y)
    for m in range(micro_batches):
        g = outs[m]
        for s in reversed(range(stages)):
            g = backward(kept[m][s], jax.device_put(g, devices[s]))
        kept[m] = None
        outs[m] = g
    return [np.asarray(g) for g in outs]

step(0)
for m, g in enumerate(step(100)):
    want = np.array([100 + m + 3, m + 3], np.float32)
    for s in reversed(range(stages)):
        want = want + 2 * 3 * (np.array([100 + m, m], np.float32) + s)
    np.testing.assert_array_equal(g, want)
print("right", flush=True)
"""


def activations_peak(cluster):
    return [worker_grant(cluster, f"worker-{s}-0")["queues"]["devices"][0]["activations_peak"] for s in range(3)]


@pytest.mark.timeout(600)
def test_a_pipeline_in_gpipe_order_keeps_its_budget():
    """Backward first, with a budget: as few activations as 1F1B would keep, the same values; without it, all of them."""
    peaks = {}
    for policy in ("client_order", "backward_first"):
        with fresh_cluster(f"--proxy-arg=--scheduling_policy={policy}", "--proxy-arg=--activation_budget=3", slices=3,
                           devices=1) as c:
            assert "right" in c.script(PIPELINE).stdout
            peaks[policy] = activations_peak(c)
    assert max(peaks["backward_first"]) == 3, peaks
    assert max(peaks["client_order"]) == 12, peaks


@pytest.mark.timeout(300)
def test_shares_of_two_sessions():
    """Device time by the sessions' weights, while both have work: the lighter one has had a third as much."""
    with fresh_cluster("--proxy-arg=--scheduling_policy=proportional_share", slices=1, devices=1) as c:
        code = SCRIPT + """
count, ms = int(sys.argv[1]), int(sys.argv[2])
f = slow(ms)
x = jax.device_put(np.float32(0), D[0])
f(x).block_until_ready()
await_stdin()
jax.block_until_ready([f(x) for _ in range(count)])
"""

        def client(weight, count, ms):
            p = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(count), str(ms)],
                                 env=c.env(LANDBRIDGE_WEIGHT=weight), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
            wait_ready(p)
            return p

        def left():
            """{session: launches that have not ended}, all of one moment."""
            return collections.Counter(launch["session"] for launch in worker_grant(c, "worker-0-0")["queues"]["launches"])

        count = 120
        light, heavy, first = client("1", count, 20), client("3", count, 20), client("1", 1, 4000)
        go(first)  # takes the device until the others have submitted everything
        until(lambda: left() == {"s3": 1}, "the first launch")
        for p in (light, heavy):
            go(p)
        until(lambda: left() == {"s1": count, "s2": count, "s3": 1}, lambda: f"all launches: {left()}")
        now = until(lambda: (now := left())["s2"] < count // 2 and now, "half of the heavy one's launches")
        assert now["s2"] > 0
        done = {session: count - now[session] for session in ("s1", "s2")}
        assert abs(done["s1"] - done["s2"] / 3) < 5, done
        for p in (first, light, heavy):
            finish(p)


def test_wishes_are_checked(cluster):
    done = cluster.script(SCRIPT + """
for options, text in (({"landbridge_phase": "sideways"}, "landbridge_phase is 'sideways'"),
                      ({"landbridge_priority": "high"}, "landbridge_priority is 'high'"),
                      ({"landbridge_colour": "blue"}, "no compiler option landbridge_colour")):
    try:
        jax.jit(lambda v: v + 1, compiler_options=options)(np.float32(1))
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(options)
f = jax.jit(lambda v: v + 1, compiler_options=landbridge.hints(priority=-3, phase="forward"))
assert float(f(np.float32(1))) == 2
print("checked")
""")
    assert "checked" in done.stdout
    wrong = (("LANDBRIDGE_WEIGHT", "0"), ("LANDBRIDGE_WEIGHT", "nan"), ("LANDBRIDGE_PRIORITY", "1.5"))
    for (name, value), refused in [(w, cluster.start("import jax; jax.devices()", **dict([w]))) for w in wrong]:
        _, err = refused.communicate(timeout=240)
        assert refused.returncode != 0 and f"{name} is '{value}'" in err, err[-2000:]
