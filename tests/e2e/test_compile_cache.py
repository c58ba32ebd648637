"""What is compiled once, though it was written twice."""

import jax
import jax.numpy as jnp
import numpy as np

from conftest import fresh_cluster
from servers import ByHand


def compiles(cluster):
    return cluster.status()["proxy"]["compile"]["compiles"]


def test_the_same_program_from_two_lines_is_compiled_once(cluster):
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])
    first = jax.jit(lambda v: jnp.sin(v) * 2 + jnp.dot(v, v))
    second = jax.jit(lambda v: jnp.sin(v) * 2 + jnp.dot(v, v))
    a = np.asarray(first(x))
    before = compiles(cluster)
    b = np.asarray(second(x))
    assert compiles(cluster) == before
    np.testing.assert_array_equal(a, b)
    # Another program is another one.
    np.asarray(jax.jit(lambda v: jnp.cos(v) * 2 + jnp.dot(v, v))(x))
    assert compiles(cluster) == before + 1


def test_operations_keep_their_names(cluster):
    """In what profiles and HLO show; without files and lines."""
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])

    def twice(v):
        with jax.named_scope("the_scope"):
            return jnp.sin(v) * 2

    text = jax.jit(twice).lower(x).as_text(debug_info=True)
    assert "jit(twice)/the_scope/sin" in text
    assert ".py" not in text


def test_the_option_turns_it_off(cluster):
    code = """
    import jax, jax.numpy as jnp, numpy as np
    x = jax.device_put(np.arange(8, dtype=np.float32), jax.devices()[0])
    text = jax.jit(lambda v: jnp.sin(v) * 2).lower(x).as_text(debug_info=True)
    print("lines" if "<string>" in text else "no lines")
    """
    assert "no lines" in cluster.script(code).stdout
    assert "no lines" not in cluster.script(code, LANDBRIDGE_PATCHES="-locations").stdout


PROGRAMS = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    devices = jax.devices()
    x = jax.device_put(np.arange(8, dtype=np.float32), devices[0])
    assert float(jax.jit(lambda v: jnp.dot(v, v) + 1)(x)) == 141
    mesh = jax.make_mesh((len(devices),), ("d",))
    y = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh, P("d")))
    total = jax.jit(lambda v: jnp.sum(v * 2), out_shardings=NamedSharding(mesh, P()))
    assert float(total(y)) == 992
"""


def compile_counts(folder):
    """What a new cluster of two workers compiles and finds for PROGRAMS; and the log of its proxy."""
    with fresh_cluster(f"--proxy-arg=--compile_cache={folder}", slices=1, workers=2, devices=2) as cluster:
        cluster.script(PROGRAMS)
        counts = cluster.status()["proxy"]["compile"]
        return counts["compiles"], counts["disk_cache"], cluster.log("proxy")


def test_the_next_cluster_finds_what_the_last_one_compiled(tmp_path):
    folder = tmp_path / "cache"
    compiled, disk, log = compile_counts(folder)
    assert compiled >= 2 and (disk["hits"], disk["misses"]) == (0, compiled)
    assert f"compile cache on disk: {folder}, 0 programs" in log
    files = sorted(folder.glob("*.program"))  # what was being written when the cluster ended is there too
    assert len(files) == compiled
    assert folder.stat().st_mode & 0o777 == 0o700 and all(f.stat().st_mode & 0o777 == 0o600 for f in files)

    again, disk, log = compile_counts(folder)
    assert (again, disk["hits"], disk["misses"], disk["refused"]) == (0, compiled, 0, 0)
    assert f"compile cache on disk: {folder}, {compiled} programs" in log

    # Half of each file, and one byte of another: nothing of that reaches a worker.
    content = files[0].read_bytes()
    files[0].write_bytes(content[:len(content) // 2])
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    again, disk, log = compile_counts(folder)
    assert (again, disk["hits"], disk["misses"], disk["refused"]) == (2, compiled - 2, 0, 2)
    for file in files[:2]:
        assert log.count(f"compile cache on disk: ignoring {file}: ") == 1
    assert compile_counts(folder)[:1] == (0,)


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    compiled, disk, log = compile_counts(folder)
    assert compiled >= 2 and disk["hits"] == disk["misses"] == 0
    assert disk["off"] == f"the folder {folder} is not safe for native code: others may write to it (mode 0777)"
    assert log.count("the compile cache on disk is off: ") == 1
    assert list(folder.iterdir()) == []


def test_places_that_are_no_local_folder_are_named():
    with ByHand() as hand:
        proxy = hand.proxy("--compile_cache=gs://bucket/x")
        assert proxy.exit_code() == 1
        assert "--compile_cache=gs://bucket/x: a local folder, or off" in proxy.log()
