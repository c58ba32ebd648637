"""Any sharding to any sharding: values against numpy, bytes per link against brute force, sources gone when donated."""

import collections.abc
import gc
import itertools
import math
import os
import signal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from admin import Links
from conftest import fresh_cluster
from servers import alone, until
from test_scheduler import worker_grant

class Slice(collections.abc.Sequence):
    """The devices of a slice, asked for when they are needed: tests are collected without a cluster."""

    def __init__(self, index):
        self.index = index

    def _devices(self):
        return [d for d in jax.devices() if d.slice_index == self.index]

    def __getitem__(self, key):
        return self._devices()[key]

    def __len__(self):
        return len(self._devices())

    def __add__(self, other):
        return [*self, *other]


FIRST, SECOND = Slice(0), Slice(1)


@pytest.fixture(scope="module")
def links(cluster):
    return Links(cluster)


def mesh(devices, shape, names):
    return Mesh(np.array(devices).reshape(shape), names)


# Every kind over a list of devices (an even number of them, or the first alone).
KINDS = {
    "replicated": lambda d: NamedSharding(mesh(d, (len(d),), ("x",)), P()),
    "rows": lambda d: NamedSharding(mesh(d, (len(d),), ("x",)), P("x")),
    "two axes": lambda d: NamedSharding(mesh(d, (2, len(d) // 2), ("x", "y")), P("x", "y")),
    "partly replicated": lambda d: NamedSharding(mesh(d, (2, len(d) // 2), ("x", "y")), P(None, "x")),
    "single device": lambda d: SingleDeviceSharding(d[-1]),
    "permuted": lambda d: NamedSharding(mesh([*d[1::2], *d[::2]], (len(d),), ("x",)), P(None, "x")),
}
PLACES = {
    "same slice": lambda: (FIRST, FIRST),
    "other slice": lambda: (FIRST, SECOND),
    "both slices": lambda: (FIRST + SECOND, SECOND + FIRST),
    "overlapping": lambda: (FIRST[2:] + SECOND[:2], FIRST[3:] + SECOND[:3]),
}


def numbers(dtype):
    n = np.arange(16 * 24).reshape(16, 24)
    if dtype == "int4":
        return (n % 15 - 7).astype(ml_dtypes.int4)
    if dtype == "bool":
        return n % 3 == 0
    if dtype == "complex64":
        return (n + 1j * (n % 7)).astype(np.complex64)
    if dtype == "bfloat16":
        return (n % 251).astype(ml_dtypes.bfloat16)
    if dtype == "key":
        return np.stack([n, n * 7 + 1], -1).astype(np.uint32)
    return n.astype(dtype)


def put(values, dtype, sharding):
    """An array that is not from host bytes any more, as arrays of programs are."""
    if dtype == "key":
        return jax.random.wrap_key_data(jax.device_put(values, physical(sharding)))
    return jax.device_put(values, sharding)


def physical(sharding):
    """Of the data of keys: one more dimension, not divided."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, P(*sharding.spec, *[None] * (3 - len(sharding.spec))))
    return sharding


def get(array, dtype):
    return np.asarray(jax.random.key_data(array) if dtype == "key" else array)


def held_by(sharding, shape, worker):
    mask = np.zeros(shape, bool)
    for device, index in sharding.devices_indices_map(shape).items():
        if device.slice_index == worker:
            mask[index] = True
    return mask


def lacking(source, target, shape, bits):
    """Element by element, with two slices of one worker: what a worker needs and does not hold comes from the other."""
    wanted = {}
    for to in (0, 1):
        lacks = held_by(target, shape, to) & ~held_by(source, shape, to)
        if lacks.any():
            wanted[1 - to, to] = int(lacks.sum()) * bits // 8
    return wanted


def held_at_rest(links):
    """What other tests have left, when it does not change any more: deletes come a little later."""
    gc.collect()
    alone(links.cluster)
    for slice_ in (FIRST, SECOND):      # what comes through after them has been released
        np.asarray(jax.device_put(np.float32(1), slice_[0]) + 1)
    seen = []

    def same():
        seen.append(links.held())
        return len(seen) > 6 and len(set(seen[-6:])) == 1

    until(same, lambda: f"rest: {seen[-6:]} bytes are held")
    return seen[-1]


def array_bytes(sharding, shape, bits):
    return len(sharding.device_set) * math.ceil(math.prod(sharding.shard_shape(shape)) * bits / 8)


BITS = {"float32": 32, "bfloat16": 16, "int4": 4, "bool": 8, "complex64": 64, "key": 64}
DTYPES = list(BITS)


def cells(place):
    """Every kind to every kind, by turns of each type. (All of them with all types, on all places and on slices of several
    workers: src/worker/shell/reshard_matrix_test.cc.)"""
    for n, (a, b) in enumerate(itertools.product(KINDS, KINDS)):
        yield a, b, DTYPES[(n + n // len(KINDS) + list(PLACES).index(place)) % len(DTYPES)]


@pytest.mark.parametrize("place", PLACES)
def test_matrix(links, place):
    from pathwaysutils import reshard

    shape = (16, 24)
    images = {dtype: numbers(dtype) for dtype in DTYPES}
    before_devices, after_devices = PLACES[place]()
    base = held_at_rest(links)
    for a, b, dtype in cells(place):
        values = images[dtype]
        source, target = KINDS[a](before_devices), KINDS[b](after_devices)
        if source == target:
            continue
        cell = f"{a} -> {b}, {dtype}"
        wanted = lacking(source, target, shape, BITS[dtype])
        for donate in (False, True):
            x = put(values, dtype, source)
            jax.block_until_ready(x)
            before = links.bytes()
            if donate:
                y = reshard.reshard(x, target, donate=True)
            else:
                y = jax.device_put(x, target)
            jax.block_until_ready(y)
            assert links.since(before) == wanted, (cell, donate)
            assert y.sharding.is_equivalent_to(target, 2), (cell, donate)
            np.testing.assert_array_equal(get(y, dtype), values, err_msg=f"{cell} donate={donate}")
            if donate:
                # The source is not touched any more; the servers hold the result and nothing else.
                size = array_bytes(target, shape, BITS[dtype])
                until(lambda: links.held() <= base + size, lambda: f"{cell}: {links.held()} bytes, not {base} + {size}")
            else:
                np.testing.assert_array_equal(get(x, dtype), values, err_msg=cell)
            del x, y
            until(lambda: links.held() <= base, lambda: f"{cell}: {links.held()} bytes are left, not {base}")
            base = links.held()     # less, when something of an earlier test went only now


def test_uneven_is_refused_as_in_plain_jax():
    x = jax.device_put(np.arange(7.0), FIRST[0])
    with pytest.raises(ValueError, match="evenly divide"):
        jax.device_put(x, KINDS["rows"](FIRST))
    np.testing.assert_array_equal(np.asarray(x), np.arange(7.0))


def test_one_upload_for_several_workers():
    """Replicated over both slices: the client sends it once, every worker pulls it."""
    for rows in (64, 4096):
        values = np.random.default_rng(0).random((rows, 1024), np.float32)
        x = jax.device_put(values, KINDS["replicated"](FIRST + SECOND))
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), values)


def test_many_arrays_in_one_request(links):
    """A tree of arrays from two device sets, some of them going nowhere."""
    from pathwaysutils import reshard

    tree = {f"w{i}": jax.device_put(np.full((8, 4 + 4 * i), i, np.float32), KINDS["rows"](FIRST if i % 2 else SECOND))
            for i in range(20)}
    for donate in (False, True):
        moved = reshard.reshard(tree, KINDS["two axes"](SECOND), donate=donate)
        for i in range(20):
            np.testing.assert_array_equal(np.asarray(moved[f"w{i}"]), np.full((8, 4 + 4 * i), i, np.float32))


def test_split_and_concatenate_by_mesh_axis(links):
    """Views: no byte moves; the parts are the shards."""
    from pathwaysutils.experimental import concatenate_by_mesh_axis, split_by_mesh_axis

    m = mesh(FIRST + SECOND, (2, 4), ("half", "x"))
    values = numbers("float32")
    for spec in (P("x"), P("half", "x"), P(("half", "x")), P(None, "half")):
        for donate in (False, True):
            tree = [jax.device_put(values, NamedSharding(m, spec)), jax.device_put(values + 1, NamedSharding(m, spec))]
            jax.block_until_ready(tree)
            before, held = links.bytes(), held_at_rest(links)
            halves = split_by_mesh_axis.split_by_mesh_axis(tree, "half", donate=donate)
            assert [{d.slice_index for d in h[0].devices()} for h in halves] == [{0}, {1}]
            for k in range(2):
                parts = [np.asarray(h[k]) for h in halves]
                axes = [i for i, s in enumerate(spec)
                        if s is not None and "half" in (s if isinstance(s, tuple) else (s,))]
                if axes:
                    np.testing.assert_array_equal(np.concatenate(parts, axes[0]), values + k)
                else:
                    np.testing.assert_array_equal(parts[0], values + k)
                    np.testing.assert_array_equal(parts[1], values + k)
            if not donate:
                np.testing.assert_array_equal(np.asarray(tree[1]), values + 1)
            whole = concatenate_by_mesh_axis.concatenate_by_mesh_axis(halves, "half")
            for k in range(2):
                assert whole[k].sharding.is_equivalent_to(NamedSharding(m, spec), 2)
            assert {k: v for k, v in links.since(before).items() if -1 not in k} == {}
            until(lambda: links.held() <= held, lambda: f"{links.held()} bytes, not {held}")
            for k in range(2):
                np.testing.assert_array_equal(np.asarray(whole[k]), values + k)
            # Programs take them.
            doubled = jax.jit(lambda v: v * 2)(jax.device_put(whole[0], FIRST[0]))
            np.testing.assert_array_equal(np.asarray(doubled), values * 2)
            del tree, halves, whole


def test_split_in_sections():
    from pathwaysutils.experimental import split_by_mesh_axis

    x = jax.device_put(numbers("float32"), NamedSharding(mesh(FIRST + SECOND, (8,), ("x",)), P(None, "x")))
    a, b, c = split_by_mesh_axis.split_by_mesh_axis(x, "x", [2, 3])
    assert [len(v.devices()) for v in (a, b, c)] == [2, 1, 5]
    np.testing.assert_array_equal(np.concatenate([np.asarray(v) for v in (a, b, c)], 1), numbers("float32"))


def test_plugin_program_and_the_cache_of_plans(cluster, links):
    from pathwaysutils.experimental import reshard

    def plans():
        return cluster.status()["proxy"]["controller"]["reshard_plans"]["made"]

    values = numbers("float32")
    source, target = KINDS["two axes"](FIRST), KINDS["permuted"](FIRST[2:] + SECOND[:2])
    wanted = lacking(source, target, (16, 24), 32)
    first = None
    for n in range(3):
        x = jax.device_put(values + n, source)
        jax.block_until_ready(x)
        before = links.bytes()
        y, = reshard.reshard([x], [target], donate=n == 2, cache_resharding_plans=True)
        jax.block_until_ready(y)
        assert links.since(before) == wanted
        assert y.sharding.is_equivalent_to(target, 2)
        np.testing.assert_array_equal(np.asarray(y), values + n)
        if n == 0:
            first = plans()
    # Donation is another question (what stays in place need not be copied); asking the same one again is not.
    assert plans() <= first + 1
    x = jax.device_put(values, source)
    z = reshard.reshard(x, target, cache_resharding_plans=True)
    np.testing.assert_array_equal(np.asarray(z), values)
    assert plans() <= first + 1


def test_intermediate_sharding():
    from pathwaysutils import reshard
    from pathwaysutils.experimental import reshard as experimental

    values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    source = NamedSharding(mesh(FIRST, (4, 1), ("a", "b")), P("a", "b"))
    target = NamedSharding(mesh(SECOND, (1, 4), ("a", "b")), P(None, "b"))
    two = NamedSharding(mesh(SECOND[:2], (1, 2), ("a", "b")), P(None, "b"))
    for goal in (target, two):
        for fn in (reshard.reshard_with_intermediate_sharding,
                   experimental.sidechannel_reshard_with_intermediate_sharding):
            x = jax.device_put(values, source)
            y = fn(x, source, goal)
            assert y.sharding.is_equivalent_to(goal, 2)
            np.testing.assert_array_equal(np.asarray(y), values)


def test_work_goes_on_while_bytes_travel():
    """A program on the result is dispatched before the bytes are there."""
    source, target = KINDS["rows"](FIRST), KINDS["permuted"](SECOND)
    x = jax.device_put(np.zeros((512, 512), np.float32), source)
    step = jax.jit(lambda v: v + 1)
    for _ in range(10):
        x = jax.device_put(step(x), target)
        x = jax.device_put(step(x), source)
    np.testing.assert_array_equal(np.asarray(x), np.full((512, 512), 20, np.float32))


def test_memory_kinds(links):
    values = numbers("float32")
    x = jax.device_put(values, KINDS["rows"](FIRST))
    for kind in ("pinned_host", "unpinned_host", "device"):
        target = KINDS["permuted"](SECOND).with_memory_kind(kind)
        before = links.bytes()
        y = jax.device_put(x, target)
        jax.block_until_ready(y)
        assert links.since(before) == {(0, 1): values.nbytes}
        assert y.sharding.memory_kind == kind
        np.testing.assert_array_equal(np.asarray(y), values)
        np.testing.assert_array_equal(np.asarray(jax.device_put(y, KINDS["rows"](FIRST))), values)


def test_large_pieces_in_strips(links):
    """Columns of large arrays: pieces that are not one run of their target, and come in chunks; more than may be on
    their way at one time."""
    values = np.arange(4096 * 8192, dtype=np.float32).reshape(4096, 8192)
    x = jax.device_put(values, KINDS["rows"](FIRST))
    jax.block_until_ready(x)
    before = links.bytes()
    y = jax.device_put(x, KINDS["permuted"](SECOND))
    z = jax.device_put(y, KINDS["rows"](FIRST))
    jax.block_until_ready(z)
    assert links.since(before) == {(0, 1): values.nbytes, (1, 0): values.nbytes}
    np.testing.assert_array_equal(np.asarray(y), values)
    np.testing.assert_array_equal(np.asarray(z), values)


def test_status_shows_bytes_per_link(cluster, links):
    x = jax.device_put(numbers("float32"), KINDS["rows"](FIRST))
    jax.block_until_ready(jax.device_put(x, KINDS["rows"](SECOND)))
    wanted = {k: v for k, v in links.bytes().items() if v}
    assert wanted[0, 1] > 0

    def shown():
        seen = {}
        for s in cluster.status()["proxy"]["slices"]:
            for worker in s["workers"]:
                for link in worker["links"]:
                    key = links.names.get(link["from"], -1), links.names[worker["life"]]
                    seen[key] = link["bytes_received"]
        return seen

    until(lambda: shown() == wanted, lambda: f"{shown()} is shown, {wanted} is right")


# ---------------------------------------------------------------- more than one worker in a slice

def test_bytes_come_into_a_slice_once_and_are_passed_on_there():
    with fresh_cluster(slices=2, workers=2, devices=2) as own:
        out = own.script(
            """
            import json, pathlib, sys
            import jax, numpy as np
            from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
            from admin import Links

            class Cluster:
                def status(self):
                    return json.loads(STATUS)

            links = Links(Cluster())
            d = jax.devices()
            a, b = ([x for x in d if x.slice_index == s] for s in (0, 1))
            assert len(a) == len(b) == 4
            x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
            n = x.nbytes

            def sharding(devices, spec):
                return NamedSharding(Mesh(np.array(devices), ("x",)), spec)

            def move(source, target):
                y = jax.device_put(x, source)
                y.block_until_ready()
                before = links.bytes()
                z = jax.device_put(y, target)
                z.block_until_ready()
                seen = links.since(before)
                np.testing.assert_array_equal(np.asarray(z), x)
                return seen

            def between(seen):
                return sum(v for (f, t), v in seen.items() if f // 2 != t // 2)

            def inside(seen):
                return sum(v for (f, t), v in seen.items() if f // 2 == t // 2)

            # Workers 0 and 1 are slice 0, 2 and 3 are slice 1.
            seen = move(sharding(a, P("x")), sharding(b, P()))
            assert (between(seen), inside(seen)) == (n, n), seen
            seen = move(sharding(a[:1], P()), sharding(b, P()))
            assert (between(seen), inside(seen)) == (n, n), seen
            seen = move(sharding(a[:1], P()), sharding(a + b, P()))
            assert (between(seen), inside(seen)) == (n, 2 * n), seen
            # Inside a slice nothing goes between slices.
            seen = move(sharding(a, P("x")), sharding(a, P(None, "x")))
            assert (between(seen), inside(seen)) == (0, n // 2), seen
            # A slice that has it is not sent it.
            seen = move(sharding([a[0], b[0]], P()), sharding([a[3], b[3]], P()))
            assert (between(seen), inside(seen)) == (0, 2 * n), seen
            print("ok")
            """.replace("STATUS", repr(__import__("json").dumps(own.status()))),
            PYTHONPATH=f"{__import__('os').path.dirname(__file__)}:{__import__('os').environ.get('PYTHONPATH', '')}",
        )
        assert out.stdout.strip() == "ok"


# ---------------------------------------------------------------- faults

@pytest.mark.parametrize("victim", ["worker-0-0", "worker-2-0"])
def test_a_worker_killed_in_the_middle_of_a_reshard(victim):
    """A source, or the receiver: an error on what needed it, the rest is healthy, and the new life serves."""
    with fresh_cluster(slices=3, devices=2) as own:
        process = own.start(
            """
            import sys
            import jax, landbridge, numpy as np
            from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

            d = jax.devices()
            of = [[x for x in d if x.slice_index == s] for s in range(3)]

            def sharding(devices, spec):
                return NamedSharding(Mesh(np.array(devices), ("x",)), spec)

            def fails(fn):
                try:
                    fn()
                except Exception as error:
                    assert "DATA_LOSS" in str(error), error
                else:
                    raise AssertionError("no error")

            values = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
            # Half of the source is there, the other half is still being computed.
            slow = jax.jit(lambda v: landbridge.virtual_compute(v, duration_us=3_000_000))
            fast = jax.device_put(values[512:], of[1][0])
            slow = slow.lower(jax.device_put(values[:512], of[0][0])).compile()
            jax.device_put(fast, of[2][0]).block_until_ready()      # the way between the workers is known
            late = slow(jax.device_put(values[:512], of[0][0]))
            x = jax.make_array_from_single_device_arrays(
                values.shape, sharding([of[0][0], of[1][0]], P("x")), [late, fast])
            other = jax.device_put(fast, sharding(of[1], P(None, "x")))
            y = jax.device_put(x, sharding(of[2], P(None, "x")))
            print("under way", flush=True)
            sys.stdin.readline()
            fails(lambda: np.asarray(y))
            fails(lambda: np.asarray(jax.jit(lambda v: v + 1)(y)))
            np.testing.assert_array_equal(np.asarray(other), values[512:])
            np.testing.assert_array_equal(np.asarray(fast), values[512:])
            if KILLED_SOURCE:
                fails(lambda: np.asarray(late))
            else:
                np.testing.assert_array_equal(np.asarray(late), values[:512])
            # The new life under the same devices.
            again = jax.device_put(values, sharding([of[0][0], of[1][0]], P("x")))
            z = jax.device_put(again, sharding(of[2], P(None, "x")))
            np.testing.assert_array_equal(np.asarray(z), values)
            print("ok")
            """.replace("KILLED_SOURCE", str(victim == "worker-0-0")))
        try:
            assert process.stdout.readline() == "under way\n", process.communicate()
            until(lambda: worker_grant(own, "worker-2-0")["queues"]["makes_total"] > 0, "the receiver at work")
            os.kill(own.pid(victim), signal.SIGKILL)
            out, err = process.communicate("\n", timeout=240)
            assert out == "ok\n", err
        finally:
            process.kill()
            process.wait()
