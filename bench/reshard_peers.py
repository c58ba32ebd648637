"""The moves of bench/reshard.py by what a stock jaxlib has of its own, with a process per worker:

  gloo      JAX's multi-process CPU runtime: one program in which each device sends its pieces by `ppermute`, one piece per
            receiver at a time, and puts together what it gets
  transfer  jax.experimental.transfer: sources cut their pieces and offer them, receivers pull and put them together

Both are written by hand for these rows; the plan (who sends what to whom) costs them nothing. A round is timed by this
process: from the word to the last answer.
"""
import json
import os
import socket
import subprocess
import sys

from local_cluster import plain_env

PEERS = ("gloo", "transfer")
TIMEOUT_S = 300

# Row -> rounds of (source, target), by position. In a round nobody sends or gets two pieces.
ROUNDS = {
    "link": [[(0, 0)]],
    "replicate_4": [[((t + r) % 4, t) for t in range(4)] for r in range(4)],
    "rows_to_columns": [[((t + r) % 4, t) for t in range(4)] for r in range(4)],
    "columns_to_rows": [[((t + r) % 4, t) for t in range(4)] for r in range(4)],
    "4_to_2": [[(2 * t + r, t) for t in range(2)] for r in range(2)],
    "2_to_4": [[(t // 2, t) for t in (r, r + 2)] for r in range(2)],
    "permuted": [[(t, t) for t in range(4)]],
    "sync": [[((2 * t + r) % 4, t) for t in range(2)] for r in range(4)],
}


def box(shape, parts, spec, position):
    """[(start, limit)] of the shard at `position` of `parts`."""
    out = []
    for axis, size in enumerate(shape):
        if axis < len(spec) and spec[axis] is not None:
            out.append((position * size // parts, (position + 1) * size // parts))
        else:
            out.append((0, size))
    return out


class Move:
    """One array's move, in numbers. Positions are of processes: those of `procs`."""

    def __init__(self, row, shape, source, target):
        (sources, source_spec), (targets, target_spec) = source, target
        self.shape, self.procs = shape, sorted({*sources, *targets})
        self.source_box = {self.procs.index(w): box(shape, len(sources), source_spec, i) for i, w in enumerate(sources)}
        self.target_box = {self.procs.index(w): box(shape, len(targets), target_spec, i) for i, w in enumerate(targets)}
        self.rounds = [[(self.procs.index(sources[s]), self.procs.index(targets[t])) for s, t in r] for r in ROUNDS[row]]

    def block(self, boxes):
        return tuple(limit - start for start, limit in next(iter(boxes.values())))

    def piece(self, s, t):
        """Where the piece begins in the source's block and in the target's, and its shape."""
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.source_box[s], self.target_box[t])]
        return ([lo - a for (lo, _), (a, _) in zip(both, self.source_box[s])],
                [lo - c for (lo, _), (c, _) in zip(both, self.target_box[t])], tuple(hi - lo for lo, hi in both))

    def cut(self, values, boxes, position):
        return values[tuple(slice(a, b) for a, b in boxes[position])]


# ---------------------------------------------------------------- a process of a peer

def child_gloo(move, count, rank, size, addresses):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.distributed.initialize(addresses[0], num_processes=size, process_id=rank)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    source_block, target_block = move.block(move.source_box), move.block(move.target_box)
    values = np.random.default_rng(0).random(move.shape, np.float32)
    mine = move.cut(values, move.source_box, rank) if rank in move.source_box else np.zeros(source_block, np.float32)
    block = jax.make_array_from_single_device_arrays(
        (size * source_block[0], *source_block[1:]), sharding, [jax.device_put(mine, jax.local_devices()[0])])
    blocks = [block] * count

    # Per round and process: where its piece is cut and put (others get none).
    starts, places, gets = [], [], []
    for r in move.rounds:
        start, place, get = np.zeros((size, 2), np.int32), np.zeros((size, 2), np.int32), np.zeros(size, bool)
        for s, t in r:
            start[s], place[t], shape = move.piece(s, t)
            get[t] = True
        starts.append(start), places.append(place), gets.append(get)
    all_get = all(get[t] for get in gets for t in move.target_box)

    def body(*xs):
        me = jax.lax.axis_index("x")
        outs = []
        for x in xs:
            out = jnp.zeros(target_block, jnp.float32)
            for r, start, place, get in zip(move.rounds, starts, places, gets):
                piece = jax.lax.dynamic_slice(x, tuple(jnp.asarray(start)[me]), shape)
                got = jax.lax.ppermute(piece, "x", r)
                if not all_get:      # who gets nothing in this round keeps what it has
                    got = jnp.where(jnp.asarray(get)[me], got, jax.lax.dynamic_slice(out, (0, 0), shape))
                out = jax.lax.dynamic_update_slice(out, got, tuple(jnp.asarray(place)[me]))
            outs.append(out)
        return tuple(outs)

    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("x"),) * count, out_specs=(P("x"),) * count,
                                    check_vma=False))
    return lambda _: program(*blocks), lambda outs: [out.addressable_shards[0].data for out in outs]


def child_transfer(move, count, rank, size, addresses):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import transfer
    from jax.sharding import SingleDeviceSharding

    device = jax.local_devices()[0]
    server = transfer.start_transfer_server(device.client, "127.0.0.1:0", ["127.0.0.1:0"] * 4)
    print(json.dumps({"address": server.address()}), flush=True)
    addresses = json.loads(sys.stdin.readline())
    pairs = [pair for r in move.rounds for pair in r]
    gives = [t for s, t in pairs if s == rank]
    gets = [s for s, t in pairs if t == rank]
    links = {s: server.connect(addresses[s]) for s in gets if s != rank}
    values = np.random.default_rng(0).random(move.shape, np.float32)
    blocks = []
    if rank in move.source_box:
        blocks = [jax.device_put(move.cut(values, move.source_box, rank), device)] * count

    def cutter(t):
        start, _, shape = move.piece(rank, t)
        return jax.jit(lambda xs: [jax.lax.slice(x, start, [a + n for a, n in zip(start, shape)]) for x in xs])
    cut = {t: cutter(t) for t in gives}

    @jax.jit
    def put_together(parts):
        outs = [jnp.zeros(move.block(move.target_box), jnp.float32) for _ in range(count)]
        for s, pieces in zip(gets, parts):
            place = move.piece(s, rank)[1]
            outs = [jax.lax.dynamic_update_slice(out, piece, tuple(place)) for out, piece in zip(outs, pieces)]
        return outs

    def go(number):
        number *= size * size
        mine = None
        for t in gives:
            pieces = cut[t](blocks)
            if t == rank:
                mine = pieces
            else:
                server.await_pull(number + rank * size + t, jax.block_until_ready(pieces))
        parts = []
        for s in gets:
            shape = jax.ShapeDtypeStruct(move.piece(s, rank)[2], jnp.float32, sharding=SingleDeviceSharding(device))
            parts.append(mine if s == rank else links[s].pull(number + s * size + rank, [shape] * count))
        return put_together(parts) if parts else []

    return go, lambda outs: outs


def child(peer, row, work, rank, addresses):
    import jax
    import numpy as np

    jax.config.update("jax_platforms", "cpu")
    shape, source, target = work[0]
    move = Move(row, shape, source, target)
    make = {"gloo": child_gloo, "transfer": child_transfer}[peer]
    go, mine = make(move, len(work), rank, len(move.procs), addresses)
    values = np.random.default_rng(0).random(shape, np.float32)
    print(json.dumps({"ready": True}), flush=True)
    for number, line in enumerate(sys.stdin):
        outs = jax.block_until_ready(go(number))
        print(json.dumps({"done": number}), flush=True)
        if line.strip() == "check" and rank in move.target_box:
            for out in mine(outs):
                np.testing.assert_array_equal(np.asarray(out), move.cut(values, move.target_box, rank))
        del outs
        if line.strip() == "check":
            print(json.dumps({"right": True}), flush=True)


# ---------------------------------------------------------------- the parent's side

def seconds(peer, row, work, rounds):
    """Of each round, after one that warms up; or the text of why there are none."""
    import time

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{s.getsockname()[1]}"]
    env = {**plain_env(), "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    shape, source, target = work[0]
    size = len(Move(row, shape, source, target).procs)
    job = json.dumps([peer, row, [(w[0], (w[1][0], list(w[1][1])), (w[2][0], list(w[2][1]))) for w in work]])
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), addresses[0]], env=env, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(size)]
    watchdog = subprocess.Popen([sys.executable, "-c", "import os, signal, sys, time\n"
                                 f"time.sleep({TIMEOUT_S})\n"
                                 "for pid in map(int, sys.argv[1:]): os.kill(pid, signal.SIGKILL)",
                                 *[str(p.pid) for p in processes]])

    def say(text):
        for p in processes:
            p.stdin.write(text + "\n")
            p.stdin.flush()

    def hear(key):
        out = []
        for p in processes:
            while not (line := p.stdout.readline()).startswith("{"):      # gloo prints, too
                if not line:
                    raise RuntimeError(p.communicate()[1][-1500:])
            out.append(json.loads(line)[key])
        return out

    try:
        say(job)
        if peer == "transfer":
            say(json.dumps(hear("address")))
        hear("ready")
        samples = []
        for i in range(rounds + 1):
            start = time.perf_counter()
            say("check" if i == rounds else "go")
            hear("done")
            samples.append(time.perf_counter() - start)
        hear("right")
        return samples[1:]
    except (RuntimeError, OSError) as error:
        return str(error) or "a process of it ended"
    finally:
        watchdog.kill()
        watchdog.wait()
        for p in processes:
            p.kill()
            p.wait()


def missing(peer):
    """Why this jaxlib cannot do it; empty: it can."""
    probe = {"gloo": "from jax._src.lib import _jax; _jax.make_gloo_tcp_collectives",
             "transfer": "from jax.experimental import transfer; transfer.start_transfer_server"}[peer]
    done = subprocess.run([sys.executable, "-c", probe], env={**plain_env(), "JAX_PLATFORMS": "cpu"},
                          capture_output=True, text=True, timeout=120)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it is not there"])[-1]


if __name__ == "__main__":
    peer, row, work = json.loads(sys.stdin.readline())
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    child(peer, row, [(tuple(w[0]), w[1], w[2]) for w in work], int(sys.argv[1]), [sys.argv[2]])
