"""jax.device_put between partitionings: the same on a cluster as on plain JAX, and without the client's help."""

import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from admin import Links
from test_reshard import FIRST, KINDS, SECOND, lacking


# What a program can see of device_put, as JSON: runs on plain JAX with eight CPU devices and on the cluster.
PROGRAM = """
    import json, warnings
    import jax, jax.numpy as jnp, ml_dtypes, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

    D = jax.devices()
    assert len(D) == 8
    seen = {}

    def mesh(devices, shape=None, names=("x",)):
        return Mesh(np.array(devices).reshape(shape or (len(devices),)), names)

    def named(devices, spec, shape=None, names=("x",)):
        return NamedSharding(mesh(devices, shape, names), spec)

    def number(device):
        return D.index(device)

    def look(x):
        if isinstance(x, (list, tuple)):
            return [look(v) for v in x]
        if isinstance(x, dict):
            return {k: look(v) for k, v in x.items()}
        if not isinstance(x, jax.Array):
            return repr(x)
        key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        data = np.asarray(jax.random.key_data(x) if key else x)
        return {
            "dtype": str(x.dtype), "shape": x.shape, "weak": bool(getattr(x.aval, "weak_type", False)), "committed": bool(x.committed),
            "sharding": type(x.sharding).__name__, "spec": str(getattr(x.sharding, "spec", None)),
            "memory": x.sharding.memory_kind if x.sharding.memory_kind == "pinned_host" else "device",
            "devices": sorted(number(d) for d in x.devices()),
            "shards": [[number(s.device), str(s.index),
                        np.asarray(s.data).astype(np.complex128).sum().real.item()]
                       for s in sorted(x.addressable_shards, key=lambda s: number(s.device))] if not key else None,
            "values": data.astype(np.complex128).ravel().view(np.float64).tolist(),
        }

    def note(name, fn):
        assert name not in seen, name
        try:
            seen[name] = look(fn())
        except Exception as error:
            seen[name] = [type(error).__name__, str(error).split("\\n")[0][:60]]

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    rows, columns, whole = (named(D[:4], s) for s in (P("x"), P(None, "x"), P()))
    far = named(D[4:], P(None, "x"))
    a = jax.jit(lambda v: v + 0, out_shardings=rows)(jax.device_put(x, rows))

    note("P(x) to P()", lambda: jax.device_put(a, whole))
    note("P(x) to P(None, x)", lambda: jax.device_put(a, columns))
    note("to other devices", lambda: jax.device_put(a, far))
    note("four to one, sharding", lambda: jax.device_put(a, SingleDeviceSharding(D[6])))
    note("four to one, device", lambda: jax.device_put(a, D[1]))
    note("four to two", lambda: jax.device_put(a, named(D[2:4], P("x"))))
    note("four to eight", lambda: jax.device_put(a, named(D, P("x"))))
    note("one to mesh", lambda: jax.device_put(jax.device_put(x, D[3]), far))
    note("uncommitted to mesh", lambda: jax.device_put(jnp.arange(8) * 2, named(D[4:], P("x"))))
    note("other order", lambda: jax.device_put(a, named(D[:4][::-1], P("x"))))
    note("other order and spec", lambda: jax.device_put(a, named([D[2], D[0], D[3], D[1]], P(None, "x"))))
    note("two axes", lambda: jax.device_put(a, named(D, P("y", "x"), (2, 4), ("x", "y"))))
    note("partly replicated", lambda: jax.device_put(a, named(D, P("x"), (2, 4), ("x", "y"))))
    note("same sharding", lambda: jax.device_put(a, rows))
    note("same sharding is the same array", lambda: jax.device_put(a, rows) is a)
    note("no device", lambda: jax.device_put(a))
    note("scalar", lambda: jax.device_put(jax.device_put(jnp.float32(3), D[0]), whole))
    note("weak type", lambda: jax.device_put(jax.device_put(jnp.asarray(2.5), D[0]), whole))
    note("weak type, other order", lambda: jax.device_put(
        jax.device_put(jnp.asarray(2), named(D[:2], P())), named(D[:2][::-1], P())))
    note("empty", lambda: jax.device_put(jax.device_put(np.zeros((8, 0), np.int32), rows), named(D[4:], P())))
    note("source lives", lambda: [jax.device_put(a, far), a])

    for dtype in (np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        v = (np.arange(64) % 7).reshape(8, 8).astype(dtype)
        note(f"dtype {np.dtype(dtype)}", lambda: jax.device_put(jax.device_put(v, rows), far))

    tree = {"a": a, "b": [jax.device_put(x + 1, columns), x + 2], "c": (3, np.int32(4)), "d": jnp.ones(4)}
    note("tree to one sharding", lambda: jax.device_put(tree, whole))
    note("tree of shardings", lambda: jax.device_put(tree, {"a": far, "b": [rows, columns], "c": whole, "d": D[5]}))
    note("tree prefix", lambda: jax.device_put(tree, {"a": far, "b": columns, "c": None, "d": D[5]}))
    note("numpy", lambda: jax.device_put(x, far))
    note("python number", lambda: jax.device_put(1.5, whole))
    note("list", lambda: jax.device_put([1, 2.0, True], whole))

    def donated(target, **options):
        b = jax.jit(lambda v: v + 1, out_shardings=rows)(jax.device_put(x, rows))
        c = jax.device_put(b, target, **options)
        c.block_until_ready()
        return c

    note("donate", lambda: donated(far, donate=True))
    note("donate to P()", lambda: donated(whole, donate=True))
    note("may_alias", lambda: [donated(far, may_alias=True), donated(whole, may_alias=False), donated(rows, may_alias=True)])
    note("donate and may_alias", lambda: donated(far, donate=True, may_alias=False))
    note("the same array twice", lambda: jax.device_put([a, a], [far, whole]))

    def fresh_copy():
        b = jax.jit(lambda v: v + 1, out_shardings=rows)(jax.device_put(x, rows))
        c = jax.device_put(b, rows, may_alias=False)
        c.delete()
        return b

    note("may_alias=False is a copy", fresh_copy)

    keys = jax.random.split(jax.random.key(7), 8)
    note("typed keys", lambda: jax.device_put(keys, named(D[4:], P("x"))))
    note("typed keys, mesh to mesh", lambda: jax.device_put(jax.device_put(keys, named(D[:4], P("x"))), named(D[2:4], P())))
    note("keys draw the same", lambda: jax.random.uniform(jax.device_put(keys, named(D[4:], P()))[3], (3,)))

    note("inside jit", lambda: jax.jit(lambda v: jax.device_put(v, columns) * 2)(a))
    note("with_sharding_constraint", lambda: jax.jit(lambda v: jax.lax.with_sharding_constraint(v, columns) + 1)(a))
    note("grad through device_put", lambda: jax.grad(lambda v: jax.device_put(v * v, SingleDeviceSharding(D[0])).sum())(
        jax.device_put(x, D[0])))
    note("vmap of device_put", lambda: jax.vmap(lambda v: jax.device_put(v, D[0]) + 1)(jax.device_put(x, D[0])))
    note("program argument", lambda: jax.jit(lambda v: v * 3, in_shardings=columns)(jnp.asarray(x)))
    note("used afterwards", lambda: jax.jit(lambda v: v @ v.T)(jax.device_put(a, far)))
    note("pinned host", lambda: jax.device_put(a, far.with_memory_kind("pinned_host")))

    def gone():
        b = jax.device_put(x, rows) + 0
        b.delete()
        return jax.device_put(b, far)

    note("deleted", gone)
    note("uneven", lambda: jax.device_put(jax.device_put(np.arange(7.0), D[0]), named(D[:4], P("x"))))
    note("rank", lambda: jax.device_put(jax.device_put(np.float32(1), D[0]), named(D[:4], P("x"))))
    note("not a device", lambda: jax.device_put(a, "cpu"))
    note("tree mismatch", lambda: jax.device_put({"a": a}, {"b": far}))
    print(json.dumps(seen))
"""


def run(env, program=PROGRAM):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def run_plain(program):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "IFRT_", "XLA_"))}
    return run({**env, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
                "PJRT_NPROC": "16"}, program)[0]


@pytest.fixture(scope="module")
def plain():
    return run_plain(PROGRAM)


def different(plain, found):
    assert plain.keys() == found.keys()
    return {k: (plain[k], found[k]) for k in plain if plain[k] != found[k]}


def test_same_as_plain_jax(cluster, plain):
    found, errors = run(cluster.env())
    assert "left out" not in errors
    assert different(plain, found) == {}


def test_the_option_turns_it_off(cluster, plain):
    """And then values are the same too: the value takes the long way. Moves that need a program over both slices do not
    work without it."""
    found, errors = run(cluster.env(LANDBRIDGE_PATCHES="-device_put"))
    assert set(different(plain, found)) <= {"other order and spec"}, set(different(plain, found))


# What is_deleted() says of arrays that share buffers, after one of them was donated or deleted.
SHARED = """
    import json
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    D = jax.devices()
    seen = {}

    def named(devices, *spec, shape=None, names=("x",)):
        return NamedSharding(Mesh(np.array(devices).reshape(shape or len(devices)), names), P(*spec))

    def put(where):
        return jax.device_put(np.arange(16.0, dtype=np.float32), where)

    def donate(x):
        jax.jit(lambda v: v * 2, donate_argnums=0)(x)

    def delete(x):
        x.delete()

    whole, rows, half = named(D), named(D, "x"), named(D[:4])
    both = dict(shape=(4, 2), names=("x", "y"))

    for end in (donate, delete):
        def note(name, make, which):
            arrays = make()
            before = [a.is_deleted() for a in arrays]
            end(arrays[which])
            seen[f"{end.__name__} {which} of {name}"] = before + [a.is_deleted() for a in arrays]

        def moved(source, target):
            x = put(source)
            y = jax.device_put(x, target)
            np.testing.assert_array_equal(np.asarray(y), np.arange(16))
            return x, y

        for name, source, target in (
                ("one to copies", D[0], whole), ("last to copies", D[7], whole), ("one to copies elsewhere", D[0], named(D[4:])),
                ("copies to one of them", whole, D[0]), ("copies to the fourth", whole, D[3]), ("copies to half", whole, half),
                ("half to copies", half, whole), ("one to rows", D[0], rows), ("rows to copies", rows, whole),
                ("rows to one", rows, D[0]), ("another name for rows", rows, named(D, ("x", "y"), **both)),
                ("same device", D[2], D[2]), ("two copies to one", named(D, "x", **both), named([D[0], D[2], D[4], D[6]], "x")),
                ("pinned", D[0], whole.with_memory_kind("pinned_host"))):
            for which in (0, 1):
                note(name, lambda: moved(source, target), which)

        def shards(i):
            x = put(rows)
            return x, x.addressable_shards[i].data
        for i in (0, 5):
            for which in (0, 1):
                note(f"shard {i}", lambda: shards(i), which)

        def assembled():
            parts = [jax.device_put(np.arange(2.0) + i, d) for i, d in enumerate(D)]
            return (jax.make_array_from_single_device_arrays((16,), rows, parts), parts[0], parts[5])
        for which in (0, 1, 2):
            note("assembled", assembled, which)

        def copied():
            x = put(D[0])
            return x, jnp.copy(x), jax.jit(lambda v: v + 0)(x)
        note("copies", copied, 0)

    x = put(D[0])
    tree = {k: put(D[0]) for k in "abc"}
    y = jax.device_put({**tree, "d": put(rows)}, whole)
    z = jax.jit(lambda t: {k: v * (i + 1) for i, (k, v) in enumerate(t.items())}, donate_argnums=0)(y)
    seen["tree"] = [[float(v.sum()) for v in z.values()], [v.is_deleted() for v in tree.values()], y["d"].is_deleted()]
    z = jax.jit(lambda v: v * 2, in_shardings=whole, donate_argnums=0)(x)
    seen["program argument"] = [np.asarray(z).tolist(), x.is_deleted()]
    try:
        seen["use"] = np.asarray(x + 1).tolist()
    except RuntimeError as error:
        seen["use"] = "deleted" in str(error)
    print(json.dumps(seen))
"""


def test_arrays_that_share_buffers_end_together(cluster):
    expected = run_plain(SHARED)
    found, errors = run(cluster.env(), SHARED)
    assert "left out" not in errors
    assert different(expected, found) == {}
    assert expected["donate 1 of one to copies"] == [False, False, True, True]
    assert expected["donate 1 of copies to the fourth"] == [False, False, False, True]


def test_may_alias_false_shares_nothing(cluster):
    """Plain JAX does share here."""
    x = jax.device_put(np.arange(16.0), FIRST[0])
    y = jax.device_put(x, KINDS["replicated"](FIRST), may_alias=False)
    x.delete()
    assert not y.is_deleted()
    np.testing.assert_array_equal(np.asarray(y), np.arange(16.0))


CASES = {
    "P(x) to P()": lambda: (KINDS["rows"](FIRST), KINDS["replicated"](FIRST)),
    "P(x) to P(None, x)": lambda: (KINDS["rows"](FIRST), NamedSharding(Mesh(np.array(FIRST), ("x",)), P(None, "x"))),
    "four to one": lambda: (KINDS["rows"](FIRST), SingleDeviceSharding(SECOND[1])),
    "four to two": lambda: (KINDS["rows"](FIRST), NamedSharding(Mesh(np.array(SECOND[:2]), ("x",)), P("x"))),
    "one to mesh": lambda: (SingleDeviceSharding(FIRST[0]), KINDS["two axes"](SECOND)),
    "other devices": lambda: (KINDS["two axes"](FIRST), KINDS["permuted"](SECOND)),
    "other order over both slices": lambda: (KINDS["rows"](FIRST + SECOND), KINDS["rows"](SECOND + FIRST)),
    "replicated to replicated": lambda: (KINDS["replicated"](FIRST), KINDS["replicated"](SECOND)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_byte_goes_through_the_proxy(cluster, name):
    source, target = CASES[name]()
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    a = jax.device_put(x, source)
    jax.block_until_ready(a)
    links = Links(cluster)
    before, proxy = links.bytes(), cluster.status()["proxy"]["tensor_bytes"]
    b = jax.device_put(a, target)
    jax.block_until_ready(b)
    assert links.since(before) == lacking(source, target, x.shape, 32)
    assert cluster.status()["proxy"]["tensor_bytes"] == proxy
    np.testing.assert_array_equal(np.asarray(b), x)


def test_donation_is_real_and_told_to_python():
    source = KINDS["rows"](FIRST)
    for target in (KINDS["permuted"](SECOND), KINDS["replicated"](FIRST)):
        a = jax.device_put(np.ones((8, 8), np.float32), source)
        b = jax.device_put(a, target, donate=True)
        assert a.is_deleted()
        np.testing.assert_array_equal(np.asarray(b), np.ones((8, 8)))


def test_one_array_donated_to_several_places():
    a = jax.device_put(np.arange(64.0, dtype=np.float32).reshape(8, 8), KINDS["rows"](FIRST))
    b, c = jax.device_put([a, a], [KINDS["permuted"](SECOND), KINDS["replicated"](SECOND)], donate=True)
    np.testing.assert_array_equal(np.asarray(b), np.asarray(c))
    assert a.is_deleted()


def test_a_poisoned_array_stays_poisoned():
    bad = jax.jit(lambda v: v + 1)
    a = jax.device_put(np.ones((8, 8), np.float32), KINDS["rows"](FIRST))
    a.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jax.device_put(a, KINDS["permuted"](SECOND))
    with pytest.raises(RuntimeError, match="deleted"):
        bad(a)
