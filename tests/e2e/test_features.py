"""What a user's program meets of JAX beside arrays and programs: it must not notice that it runs through a cluster."""

import json

# Runs on plain JAX with eight CPU devices and on the cluster, over both slices; each function's result is compared.
PROGRAM = """
    import copy, io, json, logging, os, pickle, sys, tempfile, warnings
    from functools import partial
    import jax, jax.numpy as jnp, numpy as np
    from jax import NamedSharding, P
    from jax.sharding import AxisType, Mesh

    D = jax.devices()
    auto = Mesh(np.array(D).reshape(2, 4), ("x", "y"))
    explicit = Mesh(np.array(D).reshape(2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    A = np.arange(32, dtype=np.float32).reshape(8, 4)
    put = lambda x, *spec: jax.device_put(x, NamedSharding(auto, P(*spec)))
    seen = {}

    def look(x):
        if isinstance(x, dict):
            return {str(k): look(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return [look(v) for v in x]
        if isinstance(x, (jax.Array, np.ndarray, np.generic)):
            return [str(x.dtype), np.round(np.asarray(x).astype(np.float64), 3).tolist()]
        return x if isinstance(x, (bool, int, float)) else str(x)

    def feature(f):
        try:
            seen[f.__name__] = look(f())
        except Exception as error:
            seen[f.__name__] = f"raised {type(error).__name__}: {error}"

    def raised(f):
        try:
            return look(f())
        except Exception as error:
            return type(error).__name__

    @feature
    def sharding_in_types():
        with jax.set_mesh(explicit):
            a, b = jax.device_put(A, P("x", "y")), jax.device_put(A.T.copy(), P("y", None))
            c = jnp.dot(a, b, out_sharding=P("x", None))
            d = jax.sharding.reshard(c, P(None, "x"))
            e = jax.sharding.auto_axes(lambda v: v @ v.T, axes=("x", "y"), out_sharding=P("x", None))(a)
            g = jax.grad(lambda v: (jnp.tanh(v) ** 2).sum())(a)
            return [c, jax.jit(lambda v: jnp.sin(v).sum(0))(d), e, *(jax.typeof(v) for v in (a, c, d, e, g))]

    @feature
    def pmap():
        total = jax.pmap(lambda v, w: jax.lax.psum(v * w, "i"), axis_name="i", in_axes=(0, None))
        return (total(np.arange(16, dtype=np.float32).reshape(8, 2), 2.0), jax.pmap(lambda v: v + 1, devices=D[2:6])(np.arange(4)),
                jax.pmap(jax.value_and_grad(lambda v: (v ** 2).sum()))(np.ones((8, 3), np.float32)))

    @feature
    def sparse():
        from jax.experimental import sparse
        m, v = sparse.BCOO.fromdense(jnp.array(A) * (A % 3 == 0)), jnp.arange(4.0)
        return (m.nse, m @ v, m.T @ jnp.ones(8), sparse.BCSR.from_bcoo(m) @ v, jax.jit(sparse.sparsify(lambda a, b: (a * 2) @ b))(m, v),
                jax.grad(lambda d: (sparse.BCOO((d, m.indices), shape=m.shape) @ v).sum())(m.data))

    @feature
    def random_keys():
        keys = put(jax.random.split(jax.random.key(3), 8), "x")
        uniform = jax.jit(lambda k: jax.random.uniform(k, (8, 4)), out_shardings=NamedSharding(auto, P("x", "y")))
        return (jax.jit(jax.vmap(lambda k: jax.random.normal(k, (2,))))(keys), uniform(jax.random.key(3)), keys.dtype,
                jax.random.permutation(jax.random.key(1), 6), jax.random.key_data(keys))

    @feature
    def profiler():
        folder = tempfile.mkdtemp()
        with jax.profiler.trace(folder), jax.profiler.StepTraceAnnotation("step", step_num=1):
            y = jax.jit(lambda v: (v @ v.T).sum())(A)
        names = [name for _, _, names in os.walk(folder) for name in names]
        return y, [name.endswith(".xplane.pb") for name in names if "xplane" in name], len(jax.profiler.device_memory_profile()) > 0

    @feature
    def live_arrays():
        before = len(jax.live_arrays())
        a, b = jnp.arange(3), put(A, "x")
        after = len(jax.live_arrays()) - before
        del b
        return after, len(jax.live_arrays()) - before, any(v is a for v in jax.live_arrays())

    @feature
    def caches():
        f = jax.jit(lambda v: v * 3)
        first = f(1.0)
        jax.clear_caches()
        again = f(2.0), f._cache_size(), f(np.ones(3)), f._cache_size()
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        logging.getLogger("jax").addHandler(handler)
        with jax.log_compiles():
            jax.jit(lambda v: v * 7)(A)
        logging.getLogger("jax").removeHandler(handler)
        return first, again, [words in text.getvalue() for words in ("Finished tracing", "Compiling", "Finished XLA compilation")]

    @feature
    def arrays_from_parts():
        s = NamedSharding(auto, P("x", "y"))
        a = jax.make_array_from_callback((8, 4), s, lambda i: A[i])
        return (a, jax.make_array_from_process_local_data(s, A), [q.index for q in a.addressable_shards], a.is_fully_addressable,
                jax.make_array_from_single_device_arrays((8, 4), s, [q.data for q in a.addressable_shards]),
                [q.replica_id for q in put(A, "x").addressable_shards], a.nbytes, a.sharding.shard_shape(a.shape))

    @feature
    def one_process():
        from jax.experimental import multihost_utils as multihost
        multihost.sync_global_devices("here")
        multihost.assert_equal(A, "differs")
        whole = multihost.host_local_array_to_global_array(A, auto, P("x"))
        return (jax.process_count(), jax.process_index(), jax.local_device_count(), multihost.process_allgather(np.arange(3)),
                multihost.broadcast_one_to_all({"a": np.arange(3)}), whole, multihost.process_allgather(put(A, "x"), tiled=True),
                multihost.global_array_to_host_local_array(whole, auto, P("x")))

    @feature
    def remat():
        from jax.ad_checkpoint import checkpoint_name
        policies = jax.checkpoint_policies
        def layer(w, v):
            h = checkpoint_name(jnp.sin(v @ w), "h")
            return jnp.cos(h @ w.T).sum()
        offload = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host")
        return [jax.jit(jax.grad(jax.checkpoint(layer, policy=policy)))(A[:4] / 10, np.ones((2, 4), np.float32))
                for policy in (None, policies.save_only_these_names("h"), policies.nothing_saveable, offload)]

    @feature
    def refs():
        r, s = jax.new_ref(jnp.zeros(4)), jax.new_ref(put(A, "x"))
        @jax.jit
        def f(r, v):
            r[...] += v
            r[1] = 7.
            return r[2]
        result = f(r, 2.0), f(r, 1.0)
        jax.jit(lambda s: s.__setitem__(..., s[...] * 2))(s)
        return result, r[...], s[...], s[...].sharding.spec

    @feature
    def pallas():
        from jax.experimental import pallas as pl
        def kernel(a, b, out):
            out[...] = a[...] + b[...] * 2
        spec = pl.BlockSpec((4, 4), lambda i: (i, 0))
        return jax.jit(pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 4), np.float32), grid=(2,), in_specs=[spec] * 2,
                                      out_specs=spec, interpret=True))(A, A)

    @feature
    def rules_of_its_own():
        @partial(jax.custom_vjp, nondiff_argnums=(0,))
        def apply(f, v):
            return f(v)
        apply.defvjp(lambda f, v: (f(v), v), lambda f, r, g: (g * 2 * r,))
        return jax.grad(lambda v: apply(jnp.sin, v).sum())(jnp.arange(3.0))

    @feature
    def numpy():
        a = jnp.arange(6.0).reshape(2, 3)
        n, again = np.asarray(a), np.asarray(a)
        return (n.flags.writeable, np.shares_memory(n, again), np.array(a).flags.writeable, np.array(a, dtype=np.int8), a.item(3),
                list(a), f"{a[0, 1]:.2f}", range(5)[jnp.int32(2)], type(np.add(a, 1)).__name__, type(np.float32(2) * a).__name__,
                raised(lambda: n.__setitem__((0, 0), 1)), np.asarray(put(A, "x", "y")).sum())

    @feature
    def copies():
        a, tree = put(A, "x"), {"a": jnp.ones(2), "b": [jnp.zeros(3), 4]}
        b = copy.deepcopy(tree)
        return pickle.loads(pickle.dumps(a)), copy.deepcopy(a).sharding.spec, copy.copy(a) is a, b, b["a"] is tree["a"]

    @feature
    def many_leaves():
        ys = jax.jit(lambda v: [v + i for i in range(300)])(1.0)
        got = jax.device_get({"x": [jnp.float32(i) for i in range(300)], "y": ys, "n": 3})
        wide = jax.device_put({str(i): np.float32(i) for i in range(300)}, NamedSharding(auto, P()))
        return sum(got["x"]), sum(got["y"]), type(got["x"][0]).__name__, sum(jax.device_get(wide).values())

    @feature
    def guards():
        a, s = jax.device_put(np.ones(8), D[0]), put(np.ones(8), "x")
        whole, parts = NamedSharding(auto, P()), NamedSharding(auto, P("x"))
        back = NamedSharding(Mesh(np.array(D[::-1]).reshape(2, 4), ("x", "y")), P("x"))
        found = {}
        for level in ("allow", "disallow", "disallow_explicit", "log"):
            with jax.transfer_guard_device_to_device(level):
                moves = (lambda: jax.jit(lambda v: v, in_shardings=whole)(a), lambda: jax.jit(lambda v: v, in_shardings=parts)(a),
                         lambda: jax.device_put(a, parts), lambda: jax.device_put(s, whole), lambda: jax.device_put(s, back),
                         lambda: jax.device_put(a, D[1]), lambda: jax.device_put(s, s.sharding))
                found[level] = [type(raised(f)).__name__ == "str" for f in moves]
        with jax.transfer_guard_host_to_device("disallow"):
            found["host"] = [raised(lambda: a + np.ones(8)), raised(lambda: jax.device_put(np.ones(8), D[1]).sum())]
        return found

    @feature
    def debugging():
        with jax.debug_infs(True):
            found = [raised(lambda: jnp.float32(1) / jnp.float32(0))]
        with jax.debug_nans(True):
            return found + [raised(lambda: jax.jit(lambda v: jnp.log(v) + 1)(jnp.float32(-1)))]

    @feature
    def compiler_options():
        good = jax.jit(lambda v: v @ v.T, compiler_options={"xla_cpu_enable_fast_math": True})
        return good(A), [raised(lambda: jax.jit(lambda v: v - 1, compiler_options=options)(A))
                         for options in ({"no_such_flag": True}, {"xla_embed_ir_in_executable": "maybe"})]

    @feature
    def layouts():
        from jax.experimental.layout import Format, Layout
        columns = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(D[1]))
        y, z = jax.jit(lambda v: v.T, out_shardings=columns)(jax.device_put(A, D[1])), jax.device_put(A, columns)
        return y, z, y.format.layout, z.format.layout

    @feature
    def devices():
        d = D[1]
        with jax.default_device(D[3]):
            a, b = jnp.ones(2), jax.jit(lambda: jnp.zeros(2))()
        return (d.platform, d.device_kind, d.id, d.process_index, d, [m.kind for m in d.addressable_memories()], jax.default_backend(),
                len({d, jax.devices()[1]}), a.device == D[3], b.device == D[3], jnp.ones(1, device=D[5]).device == D[5])

    @feature
    def shards():
        a = put(A, "x", "y")
        return (a[3], a[:, 1], a[2:5, ::2], a.T, jnp.concatenate([a, a]).shape, a.reshape(4, 8), [v.shape for v in jnp.split(a, 2)],
                a.at[0].add(1)[0], list(a)[7], a.max(axis=1), a.addressable_data(3), (a == put(A, None, "y")).all(), a[a > 28])

    @feature
    def ends():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            a, b, c = jnp.ones((3, 3)), jnp.ones(4), jnp.ones(3)
            jax.jit(lambda v: v.sum(), donate_argnums=0)(a)
            jax.jit(lambda v: v + 1, donate_argnums=0)(b)
            c.delete()
        uses = (lambda: c + 1, lambda: np.asarray(c), lambda: repr(c), lambda: c.block_until_ready(), lambda: pickle.dumps(c),
                lambda: jax.device_put(c, D[1]), lambda: jax.jit(lambda v: v)(c))
        return a.is_deleted(), b.is_deleted(), [str(w.message)[:34] for w in told], [raised(use) for use in uses]

    @feature
    def checkpoints():
        import orbax.checkpoint as ocp
        tree = {"w": put(A, "x", "y"), "s": 3, "b": jnp.ones(4, jnp.bfloat16)}
        like = {"w": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(auto, P(None, "y"))), "s": 0,
                "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16, sharding=tree["b"].sharding)}
        folder = tempfile.mkdtemp() + "/1"
        with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as saver:
            saver.save(folder, args=ocp.args.StandardSave(tree))
            saver.wait_until_finished()
            got = saver.restore(folder, args=ocp.args.StandardRestore(like))
        return got["w"], got["w"].sharding.spec, got["s"], got["b"].dtype

    @feature
    def hosts_memory():
        from jax.experimental.compute_on import compute_on
        @jax.jit
        def f(v):
            with compute_on("device_host"):
                w = v * 2
            return w + 1
        s = jax.device_put(A, NamedSharding(auto, P("x"), memory_kind="pinned_host"))
        g = jax.jit(lambda v: jax.device_put(v, NamedSharding(auto, P("x"), memory_kind="device")) * 2)
        return f(A), s.sharding.memory_kind, g(s), g(s).sharding.memory_kind

    @feature
    def wide_types():
        with jax.enable_x64(True):
            return jnp.arange(3.).dtype, jnp.sum(jnp.arange(10 ** 6)), jnp.float64(1) / 3

    print()
    json.dump(seen, sys.stdout)
"""

def features(cluster, **env):
    """Functions print, too; the last line is theirs."""
    return json.loads(cluster.script(PROGRAM, timeout=400, **env).stdout.splitlines()[-1])


def test_as_on_plain_jax(cluster):
    plain = features(cluster, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    mine = features(cluster)
    assert len(plain) == 26 and [name for name, found in plain.items() if "raised" in str(found)] == []
    assert {name: (plain[name], mine[name]) for name in plain if mine[name] != plain[name]} == {}
