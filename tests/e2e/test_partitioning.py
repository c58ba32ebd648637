"""Functions of the client that plain JAX's compiler calls while it divides a program: inspections, custom_partitioning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import NamedSharding, P
from jax.experimental.custom_partitioning import custom_partitioning

# The mesh spans both slices.
PROGRAMS = """
    import os
    os.environ["COLUMNS"] = "80"
    import jax, jax.numpy as jnp, numpy as np
    from functools import partial
    from jax import NamedSharding, P
    from jax.experimental.custom_partitioning import custom_partitioning, SdyShardingRule

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))

    def inspected(v):
        look = lambda name, x: jax.debug.inspect_array_sharding(x, callback=lambda s: print(name, s.spec, s.num_devices))
        w = jnp.sin(v) @ jnp.ones((4, 8), np.float32)
        look("product", w)
        w, _ = jax.lax.scan(lambda c, _: (look("carried", c), (c * 2, None))[1], w, None, length=3)
        look("columns", jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P(None, "y"))))
        look("sum", w.sum())
        return w
    x = put(np.ones((8, 4), np.float32), "x")
    for _ in range(2):  # once: then it is compiled
        print("inspected", jax.jit(inspected)(x).shape)
    jax.jit(lambda v: (jax.debug.visualize_array_sharding(v), v + 1)[1])(x)
    def by_hand():
        a = jnp.zeros(16)
        jax.debug.visualize_array_sharding(a)
        return a
    print(jax.shard_map(by_hand, mesh=mesh, in_specs=(), out_specs=P("x"))().shape)

    def specs(structs):
        return [s.sharding.spec for s in jax.tree.leaves(structs)]

    @partial(custom_partitioning, static_argnums=(2,))
    def product(a, b, precision=None):
        z = jnp.matmul(a, b, precision=precision)
        return z, z * z
    def of_parts(precision, mesh, args, results):
        print("product", precision, specs(args), specs(results))
        (axis,) = [args[1].sharding.spec[0]] if isinstance(args[1].sharding.spec[0], str) else args[1].sharding.spec[0]
        def lower(a, b):
            i = jax.lax.axis_index(axis)
            z = jax.lax.psum(jax.jit(lambda u, v: jax.lax.dynamic_slice(u, (i * 0, i * 8), (8, 8)) @ v)(a, b), axis)
            return z, z * z
        out = results[0].sharding
        return mesh, lower, (out, out), jax.tree.map(lambda s: s.sharding, args)
    product.def_partition(of_parts, sharding_rule=SdyShardingRule((("i", "j"), ("j", "k")), (("i", "k"), ("i", "k"))))
    a = put(np.arange(512, dtype=np.float32).reshape(16, 32) / 256, "x")
    b = put(np.arange(512, dtype=np.float32).reshape(32, 16) / 256, "y")
    z, squares = jax.jit(product)(a, b)
    print(z.sharding.spec, squares.sharding.spec)
    np.testing.assert_allclose(z, np.asarray(a) @ np.asarray(b), rtol=1e-5)
    np.testing.assert_array_equal(squares, np.asarray(z) ** 2)

    # What it wants is not what it has; twice in a program, in a loop, with an inspection.
    @custom_partitioning
    def doubled(v):
        return v * 2
    def on_rows(mesh, args, result):
        print("doubled", specs(args), specs(result))
        def lower(v):
            print("part", v.shape)
            return v + v
        return mesh, lower, NamedSharding(mesh, P("y")), (NamedSharding(mesh, P("y")),)
    doubled.def_partition(on_rows, sharding_rule="i j -> i j")
    def twice(v):
        v = jax.lax.fori_loop(0, 2, lambda _, c: doubled(c), doubled(v) + 1)
        jax.debug.inspect_array_sharding(v, callback=lambda s: print("after", s.spec))
        return v
    result = jax.jit(twice)(x)
    print(result.sharding.spec, np.unique(result))
    print(jax.jit(doubled, device=jax.devices()[1])(np.ones(3)))
"""


def test_as_on_plain_jax(cluster):
    plain = cluster.script(PROGRAMS, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8").stdout
    # Here all inspections of a program come before its partitions; there as XLA meets them.
    assert "carried P('x', 'y') 8" in plain and "product None [P('x', None), P('y', None)]" in plain and "part (2, 4)" in plain
    assert sorted(cluster.script(PROGRAMS).stdout.splitlines()) == sorted(plain.splitlines())


REFUSED = """
    import jax, numpy as np
    from jax.experimental.custom_partitioning import custom_partitioning
    mesh = jax.make_mesh((4,), ("d",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.ones(8, np.float32), jax.NamedSharding(mesh, jax.P("d")))
    def inspect(v):
        jax.debug.inspect_array_sharding(v * 2, callback=print)
        return v
    f = custom_partitioning(lambda v: v * 2)
    f.def_partition(lambda mesh, args, out: (mesh, lambda v: v * 2, out.sharding, (args[0].sharding,)), sharding_rule="i -> i")
    for run in (inspect, f):
        try:
            jax.block_until_ready(jax.jit(run)(x))
        except jax.errors.JaxRuntimeError as error:
            print(str(error).partition("[")[0])
    print(float(jax.jit(lambda v: v.sum())(x)))  # nothing else is harmed
"""


def test_refused_by_name_without_the_patch(cluster):
    out = cluster.script(REFUSED, LANDBRIDGE_PATCHES="-partitioning").stdout.splitlines()
    for line, name in zip(out, ("InspectSharding", "CustomSPMDPartitioning")):
        assert line.startswith("UNIMPLEMENTED") and f"'{name}'" in line and "pip install landbridge" in line
    assert out[2:] == ["8.0"]


def divided(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P("d")))


@pytest.fixture
def mesh():
    return jax.make_mesh((4,), ("d",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,))


def test_what_an_inspection_raises_reaches_the_caller(cluster, mesh):
    def refuse(sharding):
        raise LookupError(f"found {sharding.spec}")

    def program(v):
        jax.debug.inspect_array_sharding(v * 2, callback=refuse)
        return v + 1

    with pytest.raises(LookupError, match="found P.*'d'"):
        jax.jit(program)(divided(np.ones(8), mesh))
    np.testing.assert_array_equal(jax.jit(lambda v: v + 1)(divided(np.ones(8), mesh)), np.full(8, 2.0))


def test_wrong_partitions_are_named(cluster, mesh):
    @custom_partitioning
    def f(v):
        return v * 2

    def run(lower, result=P("d")):
        f.def_partition(lambda mesh, args, out: (mesh, lower, NamedSharding(mesh, result), (NamedSharding(mesh, P("d")),)),
                        sharding_rule="i -> i")
        return jax.jit(lambda v: f(v) + 1)(divided(np.ones(8, np.float32), mesh))

    np.testing.assert_array_equal(run(lambda v: v * 3), np.full(8, 4.0))
    with pytest.raises(ValueError, match="Mismatch in result shapes"):
        run(lambda v: v[:1])
    with pytest.raises(ZeroDivisionError):
        run(lambda v: 1 // 0)


def test_in_a_region_that_is_partly_by_hand(cluster):
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,) * 2)

    @custom_partitioning
    def f(v):
        return v * 2

    f.def_partition(lambda mesh, args, out: (mesh, lambda v: v * 2, out.sharding, (args[0].sharding,)), sharding_rule="i -> i")
    by_hand = jax.shard_map(f, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    with pytest.raises(NotImplementedError, match="custom_partitioning in a shard_map"):
        jax.jit(by_hand)(jnp.arange(8.0))
