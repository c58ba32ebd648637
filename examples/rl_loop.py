"""Reinforcement learning in one process: a sampler, a reward model and a trainer on three groups of devices, plain JAX.

    landbridge run --slices 2 --devices-per-worker 4 -- python examples/rl_loop.py
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/rl_loop.py     # the same rewards

The sampler writes sequences with the weights of the step before, while the trainer learns from the batch before (one
step off policy): since no call waits, the loop below overlaps by itself. `device_put` moves prompts, sequences, rewards
and, after each step, the trainer's weights (split over its devices) to the sampler (whole on each of its devices).
--slow-us makes sampling and training slow without computing more (needs a Landbridge cluster).
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

WORDS, WIDTH, LENGTH, BATCH = 32, 64, 12, 64


def group(devices, name):
    return Mesh(np.array(devices), (name,))


def init(key):
    k = jax.random.split(key, 3)
    return {"embed": jax.random.normal(k[0], (WORDS, WIDTH)) * 0.3, "mix": jax.random.normal(k[1], (WIDTH, WIDTH)) * 0.1,
            "out": jax.random.normal(k[2], (WIDTH, WORDS)) * 0.1}


def logits_after(params, word):
    return jnp.tanh(params["embed"][word] @ params["mix"]) @ params["out"]


def slow(x, mesh, spec, microseconds):
    if not microseconds:
        return x
    import landbridge
    wait = lambda v: landbridge.virtual_compute(v, duration_us=microseconds)
    return jax.shard_map(wait, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


class Sampler:
    """Half of the devices: each writes its part of the batch with a whole copy of the weights."""

    def __init__(self, devices, microseconds):
        mesh = group(devices, "batch")
        self.split, self.whole = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())

        def write(params, prompts, key):
            def step(word, key):
                word = jax.random.categorical(key, logits_after(params, word))
                return word, word
            words = jax.lax.scan(step, slow(prompts, mesh, P("batch"), microseconds), jax.random.split(key, LENGTH))[1]
            return jnp.concatenate([prompts[:, None], words.T], axis=1)

        self.write = jax.jit(write, out_shardings=self.split)


class RewardModel:
    """One device: likes words that follow each other."""

    def __init__(self, device):
        self.where = jax.sharding.SingleDeviceSharding(device)
        self.score = jax.jit(lambda text: jnp.mean((text[:, 1:] == (text[:, :-1] + 1) % WORDS).astype(jnp.float32), axis=1))


class Trainer:
    """Two devices: weights and their gradients are split over them."""

    def __init__(self, devices, key, microseconds):
        mesh = group(devices, "model")
        self.split, self.whole = NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P())
        self.params = jax.device_put(init(key), self.split)

        def loss(params, text, rewards):
            advantage = (rewards - jnp.mean(rewards)) / (jnp.std(rewards) + 1e-3)
            log_p = jax.nn.log_softmax(logits_after(params, text[:, :-1]))
            taken = jnp.sum(log_p * jax.nn.one_hot(text[:, 1:], WORDS), axis=-1)
            return -jnp.mean(advantage[:, None] * taken)

        def learn(params, text, rewards):
            gradient = jax.grad(loss)(params, text, slow(rewards, mesh, P(), microseconds))
            return jax.tree.map(lambda p, g: p - 2.0 * g, params, gradient), jnp.mean(rewards)

        self.learn = jax.jit(learn, out_shardings=(self.split, self.whole))


def run(sampler, reward, trainer, steps, first_step, wait=lambda x: x):
    """Mean reward of every step."""
    weights = jax.device_put(trainer.params, sampler.whole)
    rng = np.random.default_rng(first_step)
    history, batch = [], None
    for step in range(first_step, first_step + steps + 1):
        written = None
        if step < first_step + steps:
            prompts = jax.device_put(rng.integers(0, WORDS, BATCH).astype(np.int32), sampler.split)
            written = wait(sampler.write(weights, prompts, jax.device_put(jax.random.key(step), sampler.whole)))
        if batch is not None:                                             # of the step before
            rewards = wait(reward.score(jax.device_put(batch, reward.where)))
            trainer.params, mean = wait(trainer.learn(trainer.params, jax.device_put(batch, trainer.whole),
                                                      jax.device_put(rewards, trainer.whole)))
            weights = jax.device_put(trainer.params, sampler.whole)       # the next batch is written with these
            history.append(mean)
        batch = written
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--slow-us", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    devices = jax.devices()
    assert len(devices) >= 8, f"the loop needs 8 devices, and there are {len(devices)}"
    sampler = Sampler(devices[0:4], args.slow_us)
    trainer = Trainer(devices[4:6], jax.random.key(0), args.slow_us)
    reward = RewardModel(devices[6])

    def timed(*run_args):
        start = time.perf_counter()
        history = jax.block_until_ready(run(sampler, reward, trainer, *run_args))
        return [float(mean) for mean in history], time.perf_counter() - start

    few = min(args.steps, 5)
    history = timed(2, 0)[0]                                              # compiles
    more, alone = timed(few, 2, jax.block_until_ready)
    history += more
    more, together = timed(args.steps, 2 + few)
    history += more
    overlap = (alone / few) / (together / args.steps)
    if args.json:
        print(json.dumps({"rewards": history, "overlap": overlap, "step_s": together / args.steps}))
    else:
        print("mean reward " + " ".join(f"{mean:.3f}" for mean in history[::max(1, len(history) // 8)]))
        print(f"a step takes {together / args.steps * 1e3:.1f} ms, {overlap:.2f} times faster than one thing at a time")


if __name__ == "__main__":
    main()
