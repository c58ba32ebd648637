"""What the client's protocol has no message for: memory of devices, text and costs of compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

MIB = 1 << 20

# Of a plain JAX on one CPU device, as JSON.
PLAIN = """
    import json, jax, jax.numpy as jnp, numpy as np
    x = jax.ShapeDtypeStruct((64, 32), np.float32)
    y = jax.ShapeDtypeStruct((32, 16), np.float32)
    lowered = jax.jit(lambda a, b: jnp.tanh(a @ b)).lower(x, y)
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    print(json.dumps({
        "text": compiled.as_text().splitlines(),
        "modules": len(compiled.runtime_executable().hlo_modules()),
        "cost": compiled.cost_analysis(), "lowered cost": lowered.cost_analysis(),
        "arguments": memory.argument_size_in_bytes, "outputs": memory.output_size_in_bytes}))
"""


def in_use(device):
    return device.memory_stats()["bytes_in_use"]


def test_memory_stats_follow_what_is_made_and_dropped(cluster):
    device, other = jax.devices()[5], jax.devices()[6]
    before, others = in_use(device), in_use(other)
    x = jax.device_put(np.ones((4, MIB), np.uint8), device).block_until_ready()
    assert in_use(device) - before == 4 * MIB
    assert in_use(other) == others
    y = (x + 1).block_until_ready()
    assert in_use(device) - before == 8 * MIB
    del x
    assert in_use(device) - before == 4 * MIB
    stats = device.memory_stats()
    assert stats["peak_bytes_in_use"] >= before + 8 * MIB
    assert stats["bytes_limit"] > stats["peak_bytes_in_use"]
    y.delete()
    assert in_use(device) == before


def test_memory_stats_of_several_devices_at_once(cluster):
    mesh = Mesh(np.array(jax.devices()), "d")
    before = [in_use(d) for d in jax.devices()]
    x = jax.device_put(np.zeros((8, MIB), np.uint8), NamedSharding(mesh, P("d"))).block_until_ready()
    assert [in_use(d) - b for d, b in zip(jax.devices(), before)] == [MIB] * 8
    assert any(a is x for a in jax.live_arrays())
    assert sum(s.data.nbytes for s in x.addressable_shards) == 8 * MIB


def test_text_and_costs_are_those_of_plain_jax(cluster):
    import json
    mine = json.loads(cluster.script(PLAIN).stdout)
    plain = json.loads(cluster.script(PLAIN, JAX_PLATFORMS="cpu").stdout)
    assert mine["modules"] == 1
    assert mine["cost"]["flops"] == plain["cost"]["flops"] == 2 * 64 * 32 * 16
    assert mine["cost"]["transcendentals"] == plain["cost"]["transcendentals"] == 64 * 16
    assert mine["lowered cost"] == plain["lowered cost"]
    assert (mine["arguments"], mine["outputs"]) == (plain["arguments"], plain["outputs"])
    assert mine["text"][0].startswith("HloModule jit_")

    def entry(text):
        return next(line for line in text if line.startswith("ENTRY"))

    assert entry(mine["text"]) == entry(plain["text"])


def test_text_of_a_partitioned_program(cluster):
    mesh = Mesh(np.array(jax.devices()[:4]), "d")
    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("d")))
    compiled = jax.jit(lambda v: v.sum(0)).lower(x).compile()
    text = compiled.as_text()
    assert "all-reduce" in text and "f32[2,4]" in text  # what each device runs
    np.testing.assert_array_equal(compiled(x), np.full(4, 8, np.float32))  # it still runs


def test_text_of_a_program_over_both_slices(cluster):
    mesh = Mesh(np.array(jax.devices()), "d")
    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("d")))
    text = jax.jit(lambda v: v.sum(0)).lower(x).compile().as_text()
    assert "landbridge.collective" in text  # what each device runs


TEXT = """
    import jax, jax.numpy as jnp, numpy as np
    print(jax.jit(lambda a, b: jnp.tanh(a @ b), keep_unused=True).lower(np.ones((8, 4), np.float32),
                                                                    np.ones((4, 2), np.float32)).compile().as_text())
    mesh = jax.make_mesh((4,), ("d",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.ones((8, 4), np.float32), jax.NamedSharding(mesh, jax.P("d")))
    print(jax.jit(lambda v: v.sum(0)).lower(x).compile().as_text())
"""


def without_places(text):
    """Stock JAX writes the lines of the script into programs, and XLA's tables of them into the text."""
    lines = (line.partition(", metadata=")[0] for line in text.split("FileNames")[0].splitlines())
    return [line for line in lines if line.strip()]


def test_text_without_the_package(cluster):
    stock = cluster.script(STOCK + TEXT).stdout
    assert "HloModule jit_" in stock and "all-reduce" in stock and "f32[2,4]" in stock
    assert stock.count("ENTRY") == 2
    assert without_places(stock) == without_places(cluster.script(TEXT, LANDBRIDGE_PATCHES="-locations").stdout)
    plain = cluster.script(TEXT, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8").stdout
    entries = [[line for line in text.splitlines() if line.startswith("ENTRY")] for text in (stock, plain)]
    assert entries[0] == entries[1]


def test_what_only_the_package_has_raises_without_it(cluster):
    code = """
    import jax
    try:
        jax.devices()[0].memory_stats()
    except jax.errors.JaxRuntimeError as error:
        print("memory raises")
    """
    assert "memory raises" in cluster.script(STOCK + code).stdout


# A client without the package: the factory as a user would register it, and no plugin.
STOCK = """
    import os
    os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
    import landbridge.jax_plugin
    landbridge.jax_plugin.initialize = lambda: None
    from jax.extend import backend
    from jax.extend.backend import ifrt_proxy
    backend.register_backend_factory("proxy", lambda: ifrt_proxy.get_client(
        os.environ["JAX_BACKEND_TARGET"], ifrt_proxy.ClientConnectionOptions()), priority=-1)
"""


@pytest.mark.parametrize("patch", ["memory_stats", "program_text"])
def test_each_patch_can_be_turned_off(cluster, patch):
    code = """
    import jax, numpy as np
    compiled = jax.jit(lambda v: v + 1).lower(np.ones(3)).compile()
    for name, ask in (("memory_stats", jax.devices()[0].memory_stats),
                      ("program_text", lambda: compiled.runtime_executable().hlo_modules())):
        try:
            ask()
            print(name, "works")
        except Exception as error:
            print(name, "raises", type(error).__name__)
    """
    out = cluster.script(code, LANDBRIDGE_PATCHES=f"-{patch}").stdout
    other = {"memory_stats": "program_text", "program_text": "memory_stats"}[patch]
    assert f"{patch} raises" in out and f"{other} works" in out
