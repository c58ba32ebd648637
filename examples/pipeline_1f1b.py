"""Pipeline parallelism, one forward one backward (1F1B): the schedule is a for-loop, four stages, plain JAX.

    landbridge run --slices 4 --devices-per-worker 2 -- python examples/pipeline_1f1b.py
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/pipeline_1f1b.py     # the same losses

Each stage first takes as many micro-batches forward as there are stages after it, then alternates: activations of at
most four micro-batches are alive on a device. Nothing here waits: calls return at once, and a stage starts when its
input is there. `device_put` to the next stage's mesh is the edge between two stages. --stage-us makes stages slow
without computing more (needs a Landbridge cluster), to see overlap on a small machine.
"""
import argparse
import json
import os
import time

os.environ.setdefault("PJRT_NPROC", "24")  # plain JAX on CPU: a thread for every device that a collective waits on

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

STAGES = 4


def meshes(count):
    """One mesh per stage: its own slice, or a part of one when there are fewer slices."""
    devices = jax.devices()
    size = len(devices) // count
    assert size > 0, f"{count} stages need at least {count} devices, and there are {len(devices)}"
    return [Mesh(np.array(devices[i * size:(i + 1) * size]), ("batch",)) for i in range(count)]


class Stage:
    """Two layers on one mesh: weights on every device, the micro-batch split over them."""

    def __init__(self, mesh, key, width, last, stage_us):
        self.whole, self.split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
        self.params = jax.device_put(
            [jax.random.normal(k, (width, width)) / np.sqrt(width) for k in jax.random.split(key)], self.whole)

        def slow(x, times):
            if not stage_us:
                return x
            import landbridge
            wait = lambda v: landbridge.virtual_compute(v, duration_us=times * stage_us)
            return jax.shard_map(wait, mesh=mesh, in_specs=P("batch"), out_specs=P("batch"), check_vma=False)(x)

        def layers(params, x):
            return x + jnp.tanh(x @ params[0]) @ params[1]

        def loss(params, x, target):
            return jnp.mean((layers(params, x) - target) ** 2)

        def forward(params, x):
            return layers(params, slow(x, 1))

        def backward(params, total, x, gradient):  # computes the layers again, as a real pipeline would
            gp, gx = jax.vjp(layers, params, slow(x, 2))[1](gradient)
            return jax.tree.map(jnp.add, total, gp), gx

        def last_stage(params, total, x, target):
            value, (gp, gx) = jax.value_and_grad(loss, argnums=(0, 1))(params, slow(x, 3), target)
            return value, jax.tree.map(jnp.add, total, gp), gx

        self.forward = jax.jit(forward, out_shardings=self.split)
        self.backward = jax.jit(backward, donate_argnums=1, out_shardings=(self.whole, self.split))
        self.last = jax.jit(last_stage, donate_argnums=1, out_shardings=(self.whole, self.whole, self.split)) if last else None
        self.zeros = jax.jit(lambda p: jax.tree.map(jnp.zeros_like, p), out_shardings=self.whole)
        self.update = jax.jit(lambda p, g: jax.tree.map(lambda a, b: a - 0.05 * b, p, g), donate_argnums=0,
                              out_shardings=self.whole)


def schedule(stages, micro_batches):
    """(stage, "forward" or "backward", micro-batch) in an order in which each has its input when it is submitted."""
    plans = []
    for s in range(stages):
        ahead = min(stages - 1 - s, micro_batches)
        plan = [("forward", m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                plan.append(("forward", m + ahead))
            plan.append(("backward", m))
        plans.append(plan)
    done = set()
    while any(plans):
        for s, plan in enumerate(plans):
            if not plan:
                continue
            kind, m = plan[0]
            before = (s - 1, kind, m) if kind == "forward" else (s + 1, kind, m)
            if before[0] in (-1, stages) or before in done:
                done.add((s, *plan.pop(0)))
                yield s, kind, m


def train_step(stages, batches, wait=lambda x: x):
    """One optimizer step over all micro-batches. `wait` is called with every result: to run one thing at a time."""
    last = len(stages) - 1
    totals = [stage.zeros(stage.params) for stage in stages]
    xs, gradients, losses = {}, {}, []
    for s, kind, m in schedule(len(stages), len(batches)):
        stage = stages[s]
        if kind == "forward":
            if s == 0:
                xs[0, m] = jax.device_put(batches[m][0], stage.split)
            if s < last:                                                  # the last stage does all in "backward"
                y = wait(stage.forward(stage.params, xs[s, m]))
                xs[s + 1, m] = jax.device_put(y, stages[s + 1].split)
            continue
        x = xs.pop((s, m))                                                # the activations may go
        if s == last:
            target = jax.device_put(batches[m][1], stage.split)
            value, totals[s], gradient = wait(stage.last(stage.params, totals[s], x, target))
            losses.append(value)
        else:
            totals[s], gradient = wait(stage.backward(stage.params, totals[s], x, gradients.pop((s, m))))
        if s > 0:
            gradients[s - 1, m] = jax.device_put(gradient, stages[s - 1].split)
    for stage, total in zip(stages, totals):
        stage.params = stage.update(stage.params, total)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--stage-us", type=int, default=0, help="forward time of a stage on top; backward takes twice that")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), STAGES)
    stages = [Stage(mesh, key, args.width, s == STAGES - 1, args.stage_us)
              for s, (mesh, key) in enumerate(zip(meshes(STAGES), keys))]
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((8, args.width), np.float32), rng.standard_normal((8, args.width), np.float32))
               for _ in range(args.micro_batches)]

    history, seconds = [], {}
    for step in range(args.steps):
        one_by_one = step == 1                                            # step 0 compiles
        start = time.perf_counter()
        losses = train_step(stages, batches, jax.block_until_ready if one_by_one else lambda x: x)
        jax.block_until_ready([stage.params for stage in stages])
        seconds.setdefault("one_by_one" if one_by_one else "overlapped", []).append(time.perf_counter() - start)
        history.append(float(np.mean([float(value) for value in losses])))
    best = min(seconds["overlapped"][1:] or [float("nan")])
    overlap = seconds.get("one_by_one", [float("nan")])[0] / best
    if args.json:
        print(json.dumps({"losses": history, "overlap": overlap, "step_s": best}))
    else:
        print("losses " + " ".join(f"{value:.5f}" for value in history))
        print(f"a step takes {best * 1e3:.0f} ms, {overlap:.2f} times faster than one stage at a time")


if __name__ == "__main__":
    main()
