"""`landbridge graph`: the live dataflow graph, at any moment."""

import json
import os
import shutil
import subprocess

from conftest import LANDBRIDGE, fresh_cluster
from servers import until
from test_faults import finish, go, wait_ready
from test_scheduler import SCRIPT


def graph(cluster, *form, env=None):
    done = subprocess.run([LANDBRIDGE, "graph", "--state", cluster.state, *form], capture_output=True, text=True, timeout=120,
                          env=env)
    return done


def graph_json(cluster):
    done = graph(cluster, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_three_blocks():
    """A and B on one slice, C on another: three nodes, and the tensors between them; the local one is dashed."""
    with fresh_cluster(devices=2) as c:
        p = c.start(SCRIPT + """
mesh = lambda s: NamedSharding(Mesh(np.array(of_slice(s)), ("x",)), P("x"))
a = jax.jit(jax.shard_map(lambda v: landbridge.virtual_compute(v + 1, duration_us=6_000_000), mesh=mesh(0).mesh,
                          in_specs=P("x"), out_specs=P("x"), check_vma=False))
b = jax.jit(lambda v: v * 2, out_shardings=mesh(0))
c = jax.jit(lambda u, v: u + v, out_shardings=mesh(1))
x = jax.device_put(np.arange(8, dtype=np.float32), mesh(0))
c(*[jax.device_put(v, mesh(1)) for v in (b(x), b(x))]).block_until_ready()
a = a.lower(x).compile()
ya = a(x)
yb = b(ya)
yc = c(jax.device_put(ya, mesh(1)), jax.device_put(yb, mesh(1)))
await_stdin()
np.testing.assert_array_equal(np.asarray(yc), (np.arange(8) + 1) * 3)
await_stdin()
""")
        wait_ready(p)
        def three():
            live = graph_json(c)
            return [n["state"] for n in live["nodes"]] == ["running", "waiting", "waiting"] and live
        live = until(three, lambda: f"three nodes: {graph_json(c)}")
        a, b, cc = live["nodes"]
        assert [n["slice"] for n in (a, b, cc)] == ["slice0", "slice0", "slice1"]
        assert [n["devices"] for n in (a, b, cc)] == [[0, 1], [0, 1], [2, 3]]
        edges = {(e["from"], e["to"], e["local"], e["tensor"], e["bytes"]) for e in live["edges"]}
        assert edges == {(a["id"], b["id"], True, "f32[8]", 32), (a["id"], cc["id"], False, "f32[8]", 32),
                         (b["id"], cc["id"], False, "f32[8]", 32)}
        dot = graph(c, "--dot").stdout
        assert f'"{a["id"]}" -> "{b["id"]}" [label="f32[8]", style=dashed];' in dot
        assert f'"{a["id"]}" -> "{cc["id"]}" [label="f32[8]"];' in dot
        text = graph(c).stdout
        assert f'<- {a["id"]}  f32[8]  (moves)' in text
        go(p)
        wait_ready(p)
        assert graph_json(c) == {"nodes": [], "edges": [], "left_out": 0}
        go(p)
        finish(p)


def test_svg_needs_graphviz(cluster):
    if shutil.which("dot"):
        done = graph(cluster, "--svg")
        assert done.returncode == 0 and "<svg" in done.stdout, done.stderr
    done = graph(cluster, "--svg", env={**os.environ, "PATH": "/nowhere"})
    assert done.returncode != 0
    assert "graphviz" in done.stderr and "--dot" in done.stderr


def test_one_form_at_a_time(cluster):
    done = graph(cluster, "--svg", "--json")
    assert done.returncode != 0 and "exclude" in done.stderr.lower()
