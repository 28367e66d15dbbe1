"""PPO where env, policy and learner are all JAX: the envs and the policy act on the same device.

python examples/ppo_jax.py                                  # CartPole, about a minute on 2 cores
NODES=4 python examples/ppo_jax.py --launcher slurm         # one worker on each of four nodes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from launching import LauncherName, make_launcher

from clusterenv import ClusterEnv, JaxBackend, JaxPolicy, Rollout, distributions, gae
from clusterenv.logging import Progress, TensorBoardLog

Params = dict[str, Any]


@dataclass
class Args:
    num_envs: int = 64
    """environments on all workers together"""
    num_workers: int | None = None
    """worker processes; by default one per host"""
    launcher: LauncherName = "local"
    """where the workers run"""
    num_steps: int = 64
    """steps of each environment per update"""
    total_steps: int = 300_000
    """environment steps in all"""
    target_return: float = 475.0
    """training ends when the last 100 episodes have this mean return"""
    hidden: int = 64
    """units in each of the two hidden layers"""
    learning_rate: float = 2e-3
    """of Adam; it falls to 0"""
    update_epochs: int = 8
    """how often each batch is gone through"""
    num_minibatches: int = 8
    """per epoch"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 0.95
    """of the generalised advantage estimate"""
    clip_coef: float = 0.2
    """how far the probability ratio may leave 1"""
    ent_coef: float = 0.005
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are cut to this norm"""
    seed: int = 1
    """of envs, exploration, initial weights and minibatches"""
    eval_episodes: int = 20
    """episodes of the evaluation at the end"""
    out: Path = Path("runs/ppo_jax")
    """where the TensorBoard file goes"""


class CartPole:
    """One env as two pure functions, of which JaxBackend makes many. gymnax's envs fit as well."""

    action_space = gym.spaces.Discrete(2)

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        _, speed, angle, turning = state
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (force + 0.05 * turning**2 * sin) / 1.1
        bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        change = jnp.stack([speed, push - 0.05 * bend * cos / 1.1, turning, bend])
        state = state + 0.02 * change
        fell = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * jnp.pi / 180)
        return state, state, 1.0, fell, {}


# The policy.


def init(key: Any, sizes: list[int], gain: float) -> list[Params]:
    gains = [1.0] * (len(sizes) - 2) + [gain]
    keys = jax.random.split(key, len(gains))
    return [
        {"w": gain * jax.random.normal(key, shape) / shape[0] ** 0.5, "b": jnp.zeros(shape[1])}
        for key, shape, gain in zip(keys, pairwise(sizes), gains, strict=True)
    ]


def mlp(layers: list[Params], rows: Any) -> Any:
    for layer in layers[:-1]:
        rows = jnp.tanh(rows @ layer["w"] + layer["b"])
    return rows @ layers[-1]["w"] + layers[-1]["b"]


def act(params: Params, observations: Any) -> tuple[distributions.Distribution, Any]:
    logits = mlp(params["actor"], observations)
    return distributions.Categorical(logits), mlp(params["critic"], observations)


# The learner.


class Adam(NamedTuple):
    count: Any
    mean: Params
    square: Params


class Batch(NamedTuple):
    observations: Any
    actions: Any
    log_prob: Any
    advantages: Any
    returns: Any


def start(args: Args, key: Any) -> tuple[Params, Adam]:
    actor, critic = jax.random.split(key)
    sizes = [4, args.hidden, args.hidden]
    params = {"actor": init(actor, [*sizes, 2], 0.01), "critic": init(critic, [*sizes, 1], 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, Adam(jnp.zeros(()), zeros, zeros)


def loss_of(params: Params, batch: Batch, args: Args) -> Any:
    every = jax.nn.log_softmax(mlp(params["actor"], batch.observations))
    log_prob = jnp.take_along_axis(every, batch.actions[:, None], 1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    clipped = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
    values = mlp(params["critic"], batch.observations)[:, 0]
    value_loss = 0.5 * jnp.square(values - batch.returns).mean()
    entropy = -(jnp.exp(every) * every).sum(-1).mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy


def adam_step(params: Params, adam: Adam, grads: Params, rate: Any, args: Args) -> Any:
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(grads)))
    shrink = jnp.minimum(1.0, args.max_grad_norm / (norm + 1e-6))
    count = adam.count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * shrink * g, adam.mean, grads)
    square = jax.tree.map(
        lambda s, g: 0.999 * s + 0.001 * jnp.square(shrink * g), adam.square, grads
    )

    def moved(leaf: Any, m: Any, s: Any) -> Any:
        return leaf - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-5)

    return jax.tree.map(moved, params, mean, square), Adam(count, mean, square)


def update(args: Args, params: Params, adam: Adam, batch: Batch, key: Any, rate: Any) -> Any:
    """All epochs and minibatches in one call on the device."""
    size = len(batch.actions)

    def learn(carry: tuple[Params, Adam], rows: Any) -> tuple[tuple[Params, Adam], Any]:
        params, adam = carry
        part = jax.tree.map(lambda array: array[rows], batch)
        loss, grads = jax.value_and_grad(loss_of)(params, part, args)
        return adam_step(params, adam, grads, rate, args), loss

    keys = jax.random.split(key, args.update_epochs)
    rows = jax.vmap(lambda key: jax.random.permutation(key, size))(keys)
    minibatches = rows.reshape(args.update_epochs * args.num_minibatches, -1)
    (params, adam), losses = jax.lax.scan(learn, (params, adam), minibatches)
    return params, adam, losses.mean()


def batch_of(rollout: Rollout, args: Args) -> Batch:
    advantages, returns = gae(rollout, args.gamma, args.gae_lambda)
    arrays = (
        rollout.observations[:-1],
        rollout.actions,
        rollout.outputs["log_prob"],
        advantages.astype(np.float32),
        returns.astype(np.float32),
    )
    return Batch(*(jnp.asarray(rollout.flatten(array)) for array in arrays))


def make_envs(args: Args) -> ClusterEnv:
    backend = JaxBackend(CartPole(), max_episode_steps=500)
    launcher = make_launcher(args.launcher)
    return ClusterEnv(backend, args.num_envs, args.num_workers, launcher=launcher)


def train(args: Args, envs: ClusterEnv, progress: Progress) -> JaxPolicy:
    """The learner: it never sees an environment, only rollouts."""
    key = jax.random.key(args.seed)
    params, adam = jax.jit(partial(start, args))(key)
    policy, learn = JaxPolicy(act, params), jax.jit(partial(update, args))
    envs.reset(seed=args.seed)
    while progress.step < args.total_steps and not progress.has_reached(args.target_return):
        version = envs.publish(policy)
        rollout = envs.rollout(policy, args.num_steps)
        progress.collected(rollout, version)
        key, own = jax.random.split(key)
        rate = args.learning_rate * (1 - (progress.step - rollout.rewards.size) / args.total_steps)
        params, adam, loss = learn(params, adam, batch_of(rollout, args), own, rate)
        policy.params = params
        progress.learned(learning_rate=rate, loss=float(loss))
    return policy


def main(args: Args) -> float:
    """Train, evaluate; the mean return of the evaluation."""
    log = TensorBoardLog(args.out)
    with (
        make_envs(args) as envs,
        Progress(args.total_steps, "PPO in JAX", logs=[log], hyperparameters=args) as progress,
    ):
        policy = train(args, envs, progress)
        episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    mean = float(episodes.returns.mean())
    print(f"CartPole in JAX: mean return {mean:.1f} over {len(episodes.returns)} episodes")
    return mean


if __name__ == "__main__":
    main(tyro.cli(Args))
