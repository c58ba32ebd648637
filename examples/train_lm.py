"""Trains a small decoder-only transformer on real text, as a pipeline over two slices or with FSDP on one.

The file knows nothing of Landbridge: it is plain jax + optax + orbax. On a cluster,

    landbridge run --slices 2 --devices-per-worker 4 -- python examples/train_lm.py

and, with the same losses, on the CPU devices of one process:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/train_lm.py

The text is every .py file under --data (default: Python's own standard library), read as bytes.

Mode `pipeline`: the first half of the layers lives on one slice, the second half on the other. Each stage
is a handful of SPMD programs on its slice's mesh (batch split over `data`, weights over `tensor`). What
flows between the stages, activations forward and gradients back, crosses by jax.device_put to the same
partitioning on the other mesh. Mode `fsdp`: the whole model on one slice, weights and optimizer state
split over its devices and gathered layer by layer.
"""
import argparse
import functools
import json
import os
import pathlib
import sys
import sysconfig
import time

# Plain JAX on CPU runs all devices of the process on one thread pool; with fewer threads than running
# programs need, its collectives wait for each other for ever. Harmless on every other backend.
os.environ.setdefault("PJRT_NPROC", "20")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

PRESETS = {
    "tiny": dict(width=64, layers=4, heads=4, context=64, batch=16, microbatches=4),
    "small": dict(width=256, layers=8, heads=8, context=256, batch=16, microbatches=4),
}
VOCABULARY = 256  # bytes


# ---------------------------------------------------------------------------------------------- data

def load_corpus(folder):
    """All .py files (all files, if there are none) under `folder` as one array of bytes, in sorted order."""
    root = pathlib.Path(folder)
    files = sorted(root.rglob("*.py")) or sorted(path for path in root.rglob("*") if path.is_file())
    files = [path for path in files if "site-packages" not in path.parts and "__pycache__" not in path.parts]
    text = b"\n".join(path.read_bytes() for path in files[:2000])
    if len(text) < 100_000:
        sys.exit(f"train_lm: {folder} holds {len(text)} bytes of text; give --data a folder with at least 100 kB")
    return np.frombuffer(text, np.uint8)


def batch_of_step(corpus, step, seed, size, context):
    """Inputs and targets [size, context]. A pure function of the step, so a resumed run reads the same text."""
    starts = np.random.default_rng((seed, step)).integers(0, len(corpus) - context - 1, size)
    rows = corpus[starts[:, None] + np.arange(context + 1)].astype(np.int32)
    return rows[:, :-1], rows[:, 1:]


# --------------------------------------------------------------------------------------------- model
# Parameters are nested dicts; all layers of a stage are stacked in front ([layers, ...]) and scanned.

def init_layers(key, layers, width, heads):
    k = jax.random.split(key, 4)
    normal = lambda key, *shape: jax.random.normal(key, shape, jnp.float32) * 0.02
    return {
        "norm1": jnp.ones((layers, width)), "norm2": jnp.ones((layers, width)),
        "qkv": normal(k[0], layers, width, 3, heads, width // heads),
        "out": normal(k[1], layers, heads, width // heads, width),
        "up": normal(k[2], layers, width, 4 * width), "down": normal(k[3], layers, 4 * width, width),
    }


def init_first(key, cfg, layers):
    k = jax.random.split(key, 3)
    return {"embed": jax.random.normal(k[0], (VOCABULARY, cfg["width"])) * 0.02,
            "position": jax.random.normal(k[1], (cfg["context"], cfg["width"])) * 0.02,
            "layers": init_layers(k[2], layers, cfg["width"], cfg["heads"])}


def init_last(key, cfg, layers):
    k = jax.random.split(key, 2)
    return {"norm": jnp.ones(cfg["width"]), "unembed": jax.random.normal(k[0], (cfg["width"], VOCABULARY)) * 0.02,
            "layers": init_layers(k[1], layers, cfg["width"], cfg["heads"])}


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def run_layers(layers, x, plan):
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))

    def layer(x, w):
        w = plan.gather(w)
        q, k, v = jnp.einsum("btd,dchk->cbthk", rms_norm(x, w["norm1"]), w["qkv"])
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
        x = x + jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, w["out"])
        x = x + jax.nn.gelu(rms_norm(x, w["norm2"]) @ w["up"]) @ w["down"]
        return plan.activation(x), None

    return jax.lax.scan(layer, x, layers)[0]


def first_half(params, tokens, plan):
    x = plan.gather(params["embed"])[tokens] + plan.gather(params["position"])
    return run_layers(params["layers"], plan.activation(x), plan)


def last_half(params, x, targets, plan):
    """Mean cross entropy in nats per byte."""
    x = run_layers(params["layers"], x, plan)
    logits = rms_norm(x, plan.gather(params["norm"])) @ plan.gather(params["unembed"])
    picked = jnp.sum(logits * jax.nn.one_hot(targets, VOCABULARY), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


# ----------------------------------------------------------------------------------------- placement

class TensorParallel:
    """Batch over `data`, attention heads and MLP columns over `tensor`, on one slice's devices."""

    SPECS = {"qkv": P(None, None, None, "tensor"), "out": P(None, "tensor"), "up": P(None, None, "tensor"),
             "down": P(None, "tensor"), "unembed": P(None, "tensor")}

    def __init__(self, devices, cfg):
        tensor = 2 if len(devices) % 2 == 0 and cfg["heads"] % 2 == 0 else 1
        self.mesh = Mesh(np.array(devices).reshape(-1, tensor), ("data", "tensor"))

    def param_spec(self, name, shape):
        return self.SPECS.get(name, P())

    def gather(self, w):
        return w  # weights are used where they are

    def activation(self, x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P("data")))

    def shardings(self, tree):
        """The sharding of every array of a tree of shapes, by its name (the last key of its path)."""
        name = lambda path: next(str(key.key) for key in reversed(path) if hasattr(key, "key"))
        return jax.tree.map_with_path(
            lambda path, leaf: NamedSharding(
                self.mesh, self.param_spec(name(path), leaf.shape) if leaf.ndim else P()), tree)


class Fsdp(TensorParallel):
    """Batch and weights both over `data`: each weight is split along its longest axis and gathered for use."""

    def __init__(self, devices, cfg):
        self.mesh = Mesh(np.array(devices), ("data",))

    def param_spec(self, name, shape):
        # Stacked layers are scanned over axis 0, so a layer is gathered when its turn comes.
        sizes = [(size, axis) for axis, size in enumerate(shape) if size % self.mesh.size == 0]
        sizes = [pair for pair in sizes if pair[1] > 0] or sizes
        return P(*[None] * max(sizes)[1], "data") if sizes else P()

    def gather(self, w):
        return jax.lax.with_sharding_constraint(w, NamedSharding(self.mesh, P()))


def slices_of(devices):
    """Devices grouped by slice. Where all report the same one (plain JAX on CPU), the first and second half."""
    groups = {}
    for device in devices:
        groups.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(groups) > 1:
        return [groups[index] for index in sorted(groups)]
    half = len(devices) // 2
    return [devices[:half], devices[half:]] if half else [devices]


def sharded_init(make, plan, optimizer, key):
    """{params, opt} made on the devices, each array born in its place. Also returns the shardings."""
    def init(key):
        params = make(key)
        return {"params": params, "opt": optimizer.init(params)}
    shardings = plan.shardings(jax.eval_shape(init, key))
    return jax.jit(init, out_shardings=shardings)(key), shardings


def zeros(shardings, shapes):
    return jax.jit(lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), out_shardings=shardings)()


# ------------------------------------------------------------------------------------------ trainers
# A trainer has `state` (what a checkpoint holds) and step(inputs, targets), which dispatches one step and
# returns its loss as an array that may not be computed yet.

class PipelineTrainer:
    def __init__(self, slices, cfg, optimizer, seed):
        if len(slices) < 2:
            sys.exit("train_lm: mode pipeline needs two slices (or at least two devices); try --mode fsdp")
        self.count = cfg["microbatches"]
        self.plans = [TensorParallel(devices, cfg) for devices in slices[:2]]
        first, last = self.plans
        keys, half = jax.random.split(jax.random.key(seed), 2), cfg["layers"] // 2
        inits = [functools.partial(init_first, cfg=cfg, layers=half),
                 functools.partial(init_last, cfg=cfg, layers=cfg["layers"] - half)]
        self.state, self.grads, self.on_stage = {}, [], []
        grad_shardings = []
        for name, plan, init, key in zip(("stage0", "stage1"), self.plans, inits, keys):
            self.state[name], shardings = sharded_init(init, plan, optimizer, key)
            grad_shardings.append(shardings["params"])
            self.grads.append(zeros(shardings["params"], jax.eval_shape(init, key)))
            self.on_stage.append(NamedSharding(plan.mesh, P("data")))
        scalar = NamedSharding(last.mesh, P())
        self.loss_sum = zeros(scalar, jax.ShapeDtypeStruct((), jnp.float32))
        add = functools.partial(jax.tree.map, jnp.add)

        # The programs of stage 0. The backward pass computes the forward pass again instead of keeping its
        # inner values for every micro-batch in flight. Sums of gradients live on the device and are donated.
        def forward(params, tokens):
            return first_half(params, tokens, first)

        def backward(params, tokens, d_out, grads):
            _, pull = jax.vjp(lambda p: first_half(p, tokens, first), params)
            return add(grads, pull(d_out)[0])

        # The program of stage 1: forward, loss and backward in one.
        def forward_backward(params, x, targets, grads, loss_sum):
            loss, (d_params, d_x) = jax.value_and_grad(
                lambda p, x: last_half(p, x, targets, last), argnums=(0, 1))(params, x)
            return d_x, add(grads, d_params), loss_sum + loss

        def update(state, grads):
            mean = jax.tree.map(lambda g: g / self.count, grads)
            change, opt = optimizer.update(mean, state["opt"], state["params"])
            return ({"params": optax.apply_updates(state["params"], change), "opt": opt},
                    jax.tree.map(jnp.zeros_like, grads))

        self.forward = jax.jit(forward, out_shardings=self.on_stage[0])
        self.backward = jax.jit(backward, donate_argnums=3, out_shardings=grad_shardings[0])
        self.forward_backward = jax.jit(forward_backward, donate_argnums=(1, 3, 4),
                                        out_shardings=(self.on_stage[1], grad_shardings[1], scalar))
        self.mean_loss = jax.jit(lambda total: (total / self.count, jnp.zeros_like(total)),
                                 out_shardings=(scalar, scalar))
        self.update = [jax.jit(update, donate_argnums=(0, 1),
                               out_shardings=(plan.shardings(self.state[name]), grads))
                       for name, plan, grads in zip(self.state, self.plans, grad_shardings)]

    def where(self):
        names = ("forward, backward, update", "forward_backward, update")
        return [(f"stage {i} ({programs})", plan.mesh) for i, (programs, plan) in enumerate(zip(names, self.plans))]

    def step(self, inputs, targets):
        inputs, targets = np.split(inputs, self.count), np.split(targets, self.count)
        params = [self.state[name]["params"] for name in self.state]
        tokens = [None] * self.count
        d_acts = [None] * self.count
        # One forward, one backward (1F1B): stage 0 runs forward of micro-batch m+1 while stage 1 works on m,
        # and the gradient of m-1 goes back meanwhile. All of it is dispatched without waiting for anything.
        for m in range(self.count + 1):
            if m < self.count:
                tokens[m] = jax.device_put(inputs[m], self.on_stage[0])
                act = jax.device_put(self.forward(params[0], tokens[m]), self.on_stage[1])
                d_act, self.grads[1], self.loss_sum = self.forward_backward(
                    params[1], act, jax.device_put(targets[m], self.on_stage[1]), self.grads[1], self.loss_sum)
                d_acts[m] = jax.device_put(d_act, self.on_stage[0])
            if m > 0:
                self.grads[0] = self.backward(params[0], tokens[m - 1], d_acts[m - 1], self.grads[0])
                d_acts[m - 1] = None
        for i, name in enumerate(self.state):
            self.state[name], self.grads[i] = self.update[i](self.state[name], self.grads[i])
        loss, self.loss_sum = self.mean_loss(self.loss_sum)
        return loss


class FsdpTrainer:
    def __init__(self, slices, cfg, optimizer, seed):
        plan = self.plan = Fsdp(slices[0], cfg)
        half = cfg["layers"] // 2

        def init(key):
            keys = jax.random.split(key, 2)
            return {"first": init_first(keys[0], cfg, half), "last": init_last(keys[1], cfg, cfg["layers"] - half)}

        self.state, shardings = sharded_init(init, plan, optimizer, jax.random.key(seed))
        self.batch = NamedSharding(plan.mesh, P("data"))

        def step(state, tokens, targets):
            def loss_of(params):
                return last_half(params["last"], first_half(params["first"], tokens, plan), targets, plan)
            loss, grads = jax.value_and_grad(loss_of)(state["params"])
            change, opt = optimizer.update(grads, state["opt"], state["params"])
            return {"params": optax.apply_updates(state["params"], change), "opt": opt}, loss

        self.step_program = jax.jit(step, donate_argnums=0,
                                    out_shardings=(shardings, NamedSharding(plan.mesh, P())))

    def where(self):
        return [("train step", self.plan.mesh)]

    def step(self, inputs, targets):
        self.state, loss = self.step_program(
            self.state, jax.device_put(inputs, self.batch), jax.device_put(targets, self.batch))
        return loss


# ---------------------------------------------------------------------------------------------- main

class Checkpoints:
    """Unmodified Orbax: saves {state} under the number of finished steps; does nothing without a folder."""

    def __init__(self, folder, every):
        self.manager = None
        if folder:
            import orbax.checkpoint as ocp
            self.ocp = ocp
            self.manager = ocp.CheckpointManager(
                pathlib.Path(folder).absolute(),
                options=ocp.CheckpointManagerOptions(save_interval_steps=every, max_to_keep=3))

    def restore(self, trainer):
        step = self.manager.latest_step() if self.manager else None
        if step is None:
            return 0
        target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), trainer.state)
        trainer.state = self.manager.restore(step, args=self.ocp.args.StandardRestore(target))
        return step

    def save(self, step, trainer):
        if self.manager:
            self.manager.save(step, args=self.ocp.args.StandardSave(trainer.state))

    def close(self):
        if self.manager:
            self.manager.wait_until_finished()
            self.manager.close()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=("pipeline", "fsdp"), default="pipeline")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--steps", type=int, default=50, help="train up to this step")
    parser.add_argument("--data", default=sysconfig.get_paths()["stdlib"], help="folder with the text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--log_every", type=int, default=10)
    parser.add_argument("--lag", type=int, default=2, help="read a step's loss this many steps later")
    parser.add_argument("--checkpoint_dir")
    parser.add_argument("--checkpoint_every", type=int, default=20)
    parser.add_argument("--dispatch_report", action="store_true",
                        help="wait after every step and report when its dispatch returned and when it had run")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args()


def main():
    args = parse_arguments()
    say = functools.partial(print, flush=True)
    cfg = PRESETS[args.preset]
    corpus = load_corpus(args.data)
    slices = slices_of(jax.devices())
    say(f"text: {len(corpus) / 1e6:.1f} MB from {args.data}")
    say(f"backend: {jax.devices()[0].client.runtime_type}, {len(jax.devices())} devices in {len(slices)} slices")

    started = time.perf_counter()
    trainer = (PipelineTrainer if args.mode == "pipeline" else FsdpTrainer)(slices, cfg, optax.adamw(args.lr), args.seed)
    for programs, mesh in trainer.where():
        shape = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
        index = next(i for i, devices in enumerate(slices) if mesh.devices.flat[0] in devices)
        ids = ", ".join(str(d.id) for d in mesh.devices.flat)
        say(f"{programs}: on slice {index}, mesh {shape}, {mesh.devices.flat[0].device_kind} devices {ids}")
    weights = sum(a.size for a in jax.tree.leaves(trainer.state)) // 3  # adam keeps two more of each
    say(f"model: {weights:,} parameters, {args.preset}; {cfg['batch']} x {cfg['context']} bytes a step")

    checkpoints = Checkpoints(args.checkpoint_dir, args.checkpoint_every)
    first_step = checkpoints.restore(trainer)
    if first_step:
        say(f"resumed from {args.checkpoint_dir} after step {first_step}")

    losses, waiting, dispatch_ms, step_ms, warm = [], [], [], [], None

    def read_oldest():
        step, loss = waiting.pop(0)
        losses.append(float(loss))
        if step % args.log_every == 0 or step in (1, args.steps):
            rate = ""
            if warm and step > warm[0]:
                rate = f"  {(step - warm[0]) * cfg['batch'] * cfg['context'] / (time.perf_counter() - warm[1]):,.0f} tokens/s"
            say(f"step {step:4d}  loss {losses[-1]:.4f}{rate}")

    for step in range(first_step + 1, args.steps + 1):
        begin = time.perf_counter()
        loss = trainer.step(*batch_of_step(corpus, step, args.seed, cfg["batch"], cfg["context"]))
        dispatched = time.perf_counter()
        waiting.append((step, loss))
        if args.dispatch_report:
            loss.block_until_ready()
            dispatch_ms.append((dispatched - begin) * 1e3)
            step_ms.append((time.perf_counter() - begin) * 1e3)
            say(f"step {step:4d}  dispatch returned after {dispatch_ms[-1]:.1f} ms, done after {step_ms[-1]:.1f} ms")
        # The loss is read late, so that this process stays ahead of the devices.
        while len(waiting) > (0 if args.dispatch_report else args.lag):
            read_oldest()
        if warm is None and step == first_step + 2:  # compiled; from here on it is the steady state
            while waiting:
                read_oldest()
            jax.block_until_ready(trainer.state)
            say(f"compiled and ran 2 steps in {time.perf_counter() - started:.1f} s")
            warm = (step, time.perf_counter())
        checkpoints.save(step, trainer)
    while waiting:
        read_oldest()
    jax.block_until_ready(trainer.state)
    ended = time.perf_counter()
    checkpoints.close()

    rate = None
    if warm and args.steps > warm[0]:
        rate = (args.steps - warm[0]) * cfg["batch"] * cfg["context"] / (ended - warm[1])
    if losses:
        say(f"done: loss {losses[0]:.4f} -> {losses[-1]:.4f}" + (f", {rate:,.0f} tokens/s" if rate else ""))
    if args.json:
        median = lambda values: float(np.median(values)) if values else None
        print(json.dumps({
            "mode": args.mode, "preset": args.preset, "first_step": first_step + 1, "steps": args.steps,
            "losses": losses, "tokens_per_s": rate, "seconds": ended - started,
            "dispatch_ms": median(dispatch_ms[2:]), "step_ms": median(step_ms[2:]),
            "runtime": jax.devices()[0].client.runtime_type,
            "where": [{"programs": programs, "devices": [int(d.id) for d in mesh.devices.flat]}
                      for programs, mesh in trainer.where()]}), flush=True)


if __name__ == "__main__":
    main()
