"""Compiled programs that clients keep: JAX's persistent compilation cache, and jax.experimental.serialize_executable."""

import pytest
from conftest import fresh_cluster

# Compiles three programs, with what JAX's cache on disk did, on stdout.
PROGRAMS = """
    import collections, warnings
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    events = collections.Counter()
    jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
    warnings.simplefilter("error", UserWarning)
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[2])
    y = jax.jit(lambda v: jnp.dot(v, v) + 1)(x)
    assert float(y) == 141 and y.devices() == x.devices()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
    z = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), NamedSharding(mesh, P("d")))
    total = jax.jit(lambda v: jnp.sum(v * 2), out_shardings=NamedSharding(mesh, P()))(z)
    assert float(total) == 4032
    w = jax.jit(lambda v: v * 3, donate_argnums=0)(z)
    assert z.is_deleted() and w.sharding.spec == P("d")
    np.testing.assert_array_equal(np.asarray(w), np.arange(64, dtype=np.float32).reshape(16, 4) * 3)
    print("hits", events["/jax/compilation_cache/cache_hits"], "misses", events["/jax/compilation_cache/cache_misses"])
"""


def cache_env(folder, **more):
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0", **more}


def compiles(cluster):
    return cluster.status()["proxy"]["compile"]["compiles"]


def test_a_second_process_finds_in_jaxs_cache_what_the_first_compiled(cluster, tmp_path):
    """Also programs over several workers. Nothing is even asked of the compile cache of the server."""
    first = cluster.script(PROGRAMS, **cache_env(tmp_path)).stdout.split()
    misses = int(first[3])
    assert first[1] == "0" and misses >= 3
    before = cluster.status()["proxy"]["compile"]
    again = cluster.script(PROGRAMS, **cache_env(tmp_path)).stdout.split()
    assert again == ["hits", str(misses), "misses", "0"]
    after = cluster.status()["proxy"]["compile"]
    assert (after["compiles"], after["cache_hits"]) == (before["compiles"], before["cache_hits"])


def test_the_next_cluster_takes_them_if_it_shares_the_compile_cache_of_the_server(tmp_path):
    """Its key, that is: the programs are gone from there."""
    server, kept = tmp_path / "server", tmp_path / "kept"
    with fresh_cluster(f"--proxy-arg=--compile_cache={server}", slices=2, devices=2) as one:
        misses = int(one.script(PROGRAMS, **cache_env(kept)).stdout.split()[3])
    key = server / "seal.key"
    assert key.stat().st_mode & 0o777 == 0o600 and key.stat().st_size == 32
    for program in server.glob("*.program"):
        program.unlink()
    with fresh_cluster(f"--proxy-arg=--compile_cache={server}", slices=2, devices=2) as two:
        assert two.script(PROGRAMS, **cache_env(kept)).stdout.split() == ["hits", str(misses), "misses", "0"]
        assert compiles(two) == 0
    # One with another key has nothing to do with them: JAX does not even find them (and would have raised a warning).
    with fresh_cluster(slices=2, devices=2) as three:
        assert three.script(PROGRAMS, **cache_env(kept)).stdout.split() == ["hits", "0", "misses", str(misses)]


def test_corrupt_entries_of_jaxs_cache_are_compiled_again(cluster, tmp_path):
    code = """
    import warnings, jax, numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(float(jax.jit(lambda v: v * 7 + 2)(np.float32(5))))
    print([str(w.message) for w in caught if "compilation cache" in str(w.message)])
    """
    assert cluster.script(code, **cache_env(tmp_path)).stdout == "37.0\n[]\n"
    import zlib
    try:
        import zstandard
        unpack, pack = zstandard.ZstdDecompressor().decompress, zstandard.ZstdCompressor().compress
    except ImportError:
        unpack, pack = zlib.decompress, zlib.compress
    entries = list(tmp_path.glob("*-cache"))
    assert entries
    for entry in entries:
        content = bytearray(unpack(entry.read_bytes()))
        content[len(content) // 2] ^= 1
        entry.write_bytes(pack(bytes(content)))
    value, said = cluster.script(code, **cache_env(tmp_path)).stdout.splitlines()
    assert value == "37.0"
    assert "this serialized program cannot be loaded: its seal does not match: the bytes are corrupt" in said


SERIALIZE = """
    import pickle, jax, jax.numpy as jnp, numpy as np
    from jax.experimental import serialize_executable
    from jax.sharding import NamedSharding, PartitionSpec as P
    devices = jax.devices()
    kept = {}
    for name, chosen in (("one", devices[3:4]), ("all", devices), ("slice", devices[4:8])):
        mesh = jax.sharding.Mesh(np.array(chosen), "d")
        x = jax.device_put(np.arange(16, dtype=np.float32).reshape(8, 2), NamedSharding(mesh, P("d")))
        compiled = jax.jit(lambda v, w: (jnp.sum(v) + w, v * 2)).lower(x, 3).compile()
        kept[name] = (serialize_executable.serialize(compiled), [np.asarray(y) for y in compiled(x, 3)])
    pickle.dump(kept, open(PATH, "wb"))
"""

LOAD = """
    import pickle, jax, numpy as np
    from jax.experimental import serialize_executable
    from jax.sharding import NamedSharding, PartitionSpec as P
    devices = jax.devices()
    kept = pickle.load(open(PATH, "rb"))
    for name, chosen in (("one", devices[3:4]), ("all", devices), ("slice", devices[4:8])):
        packed, values = kept[name]
        # By default, where it was; JAX asks for it, since it looks up devices of shardings there.
        for more in ({}, {"execution_devices": chosen}):
            compiled = serialize_executable.deserialize_and_load(*packed, **more)
            mesh = jax.sharding.Mesh(np.array(chosen), "d")
            x = jax.device_put(np.arange(16, dtype=np.float32).reshape(8, 2), NamedSharding(mesh, P("d")))
            for y, value in zip(compiled(x, 3), values, strict=True):
                assert y.devices() == set(chosen)
                np.testing.assert_array_equal(np.asarray(y), value)
    print("loaded")
"""


def test_serialize_executable_from_process_to_process(cluster, tmp_path):
    path = f"    PATH = {str(tmp_path / 'kept')!r}\n"
    cluster.script(path + SERIALIZE)
    before = compiles(cluster)
    assert "loaded" in cluster.script(path + LOAD).stdout
    assert compiles(cluster) == before


def test_what_cannot_be_loaded_is_named(cluster, tmp_path):
    code = """
    import jax, jax.numpy as jnp, numpy as np
    compiled = jax.jit(lambda v: v + 1).lower(np.ones(3, np.float32)).compile()
    client, executable = jax.devices()[0].client, compiled.runtime_executable()
    good = client.serialize_executable(executable)
    assert good == executable.serialize()
    from jax._src.lib import xla_client as xc
    def load(what, devices=(0,)):
        try:
            return client.deserialize_executable(what, xc.DeviceList(tuple(jax.devices()[d] for d in devices)), None)
        except jax.errors.JaxRuntimeError as error:
            print("refused:", str(error).split("[log")[0])
    assert load(good).fingerprint == executable.fingerprint
    for bad in (b"", b"nonsense", good[:-1], good[:len(good) // 2], good + b"x", b"\\0" + good):
        load(bad)
    flipped = bytearray(good); flipped[-5] ^= 4
    load(bytes(flipped))
    open(PATH, "wb").write(good)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "d")
    many = jax.jit(lambda v: v + 1, out_shardings=jax.NamedSharding(mesh, jax.P("d")))
    many = many.lower(np.ones(4, np.float32)).compile().runtime_executable().serialize()
    options = jax._src.compiler.get_compile_options(num_replicas=1, num_partitions=1)
    try:
        client.deserialize_executable(many, xc.DeviceList((jax.devices()[0],)), options)
    except jax.errors.JaxRuntimeError as error:
        print("options:", error)
    print(np.asarray(compiled(np.ones(3, np.float32))))
    """
    path = f"    PATH = {str(tmp_path / 'kept')!r}\n"
    out = cluster.script(path + code).stdout.splitlines()
    refused = [line for line in out if line.startswith("refused: ")]
    assert len(refused) == 7
    for line in refused:
        assert line.startswith("refused: INVALID_ARGUMENT: this serialized program cannot be loaded: "), line
    assert "its seal does not match: the bytes are corrupt" in refused[-1]
    assert "A serialized program for 2 devices cannot be loaded on 1" in next(x for x in out if x.startswith("options: "))
    assert out[-1] == "[2. 2. 2.]"                                        # nobody is the worse for it
    foreign = """
    import jax
    from jax._src.lib import xla_client as xc
    try:
        jax.devices()[0].client.deserialize_executable(open(PATH, "rb").read(), xc.DeviceList((jax.devices()[0],)), None)
    except jax.errors.JaxRuntimeError as error:
        print(error)
    """
    with fresh_cluster(slices=1, devices=2) as other:
        assert "a server with another compile cache made it" in other.script(path + foreign).stdout


def test_programs_that_call_python_are_left_out(cluster, tmp_path):
    code = """
    import warnings, jax, numpy as np
    warnings.simplefilter("error", UserWarning)
    f = jax.jit(lambda v: jax.pure_callback(lambda a: a * 2, v, v) + 1)
    print(np.asarray(f(np.ones(2, np.float32))))
    from jax.experimental import serialize_executable
    try:
        serialize_executable.serialize(f.lower(np.ones(2, np.float32)).compile())
    except NotImplementedError as error:
        print(error)
    """
    out = cluster.script(code, **cache_env(tmp_path)).stdout
    assert out.startswith("[3. 3.]") and "calls Python functions of this process (callbacks), so it cannot be serialized" in out
    assert not [f for f in tmp_path.iterdir() if "lambda" in f.name and f.name.endswith("-cache")]


@pytest.mark.parametrize("client", ["stock", "off"])
def test_without_the_patch_jax_does_not_try(cluster, tmp_path, client):
    from test_questions import STOCK
    code = """
    import warnings, jax, numpy as np
    warnings.simplefilter("error", UserWarning)
    print(float(jax.jit(lambda v: v * 7 + 3)(np.float32(5))))
    """
    env = cache_env(tmp_path, **({"LANDBRIDGE_PATCHES": "-serialization"} if client == "off" else {}))
    assert cluster.script((STOCK if client == "stock" else "") + code, **env).stdout == "38.0\n"
    assert not list(tmp_path.glob("*-cache"))


def test_clients_that_pathwaysutils_makes_have_it_too(cluster, tmp_path):
    """And callbacks, which need a token that the client announces."""
    code = """
    import collections, os
    os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
    from pathwaysutils import proxy_backend
    proxy_backend.register_backend_factory()
    import jax, numpy as np
    events = collections.Counter()
    jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
    print(float(jax.jit(lambda v: v * 7 + 4)(np.float32(5))))
    print(np.asarray(jax.jit(lambda v: jax.pure_callback(lambda a: a * 2, v, v))(np.ones(2, np.float32))))
    print("hits", events["/jax/compilation_cache/cache_hits"])
    """
    assert cluster.script(code, **cache_env(tmp_path)).stdout == "39.0\n[2. 2.]\nhits 0\n"
    assert cluster.script(code, **cache_env(tmp_path)).stdout.splitlines()[:2] == ["39.0", "[2. 2.]"]
    assert cluster.script(code, **cache_env(tmp_path)).stdout.splitlines()[2] != "hits 0"
