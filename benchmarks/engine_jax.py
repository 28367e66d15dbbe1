"""CartPole in JAX, and its engine without ClusterEnv: one jitted function steps all envs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from clusterenv import JaxPolicy
from clusterenv.distributions import Categorical

HIDDEN = 64


class Pole(NamedTuple):
    """Where cart and pole are, and how fast."""

    place: Any
    speed: Any
    angle: Any
    turning: Any


class CartPole:
    """The cart and pole of Gymnasium's CartPole-v1, in gymnax's form; no time limit."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, key: Any) -> tuple[Any, Pole]:
        """A new episode of one env."""
        state = Pole(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))
        return jnp.stack(state), state

    def step(self, key: Any, state: Pole, action: Any) -> tuple[Any, Pole, Any, Any, dict]:
        """0.02 seconds of one env."""
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(state.angle), jnp.sin(state.angle)
        push = (force + 0.05 * state.turning**2 * sin) / 1.1
        bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moved = Pole(
            state.place + 0.02 * state.speed,
            state.speed + 0.02 * (push - 0.05 * bend * cos / 1.1),
            state.angle + 0.02 * state.turning,
            state.turning + 0.02 * bend,
        )
        fell = (jnp.abs(moved.place) > 2.4) | (jnp.abs(moved.angle) > 12 * jnp.pi / 180)
        return jnp.stack(moved), moved, jnp.float32(1.0), fell, {}


class Alone:
    """Steps all envs in one jitted call, which resets those that have ended."""

    def __init__(self, env: Any, num_envs: int, seed: int) -> None:
        # As on a worker: whoever calls a step waits for it.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self._env, self._num_envs, self._seed = env, num_envs, seed
        self._step = jax.jit(self._step_all)

    def reset(self) -> Any:
        """The first observations, on the device."""
        seeds = jnp.arange(self._seed, self._seed + self._num_envs)
        self._keys = jax.vmap(jax.random.PRNGKey)(seeds)
        observations, self._states = jax.jit(jax.vmap(self._env.reset))(self._keys)
        return observations

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        """Observations on the device; rewards and ends as arrays of NumPy."""
        self._keys, self._states, observations, rewards, done = self._step(
            self._keys, self._states, actions
        )
        return observations, np.asarray(rewards), np.asarray(done)

    def _step_all(self, keys: Any, states: Any, actions: Any) -> tuple[Any, ...]:
        keys, own = jax.vmap(jax.random.split)(keys).swapaxes(0, 1)
        stepped = jax.vmap(self._env.step)(own, states, actions)
        observations, states, rewards, done, _ = stepped

        def reset_ended() -> tuple[Any, Any]:
            firsts, fresh = jax.vmap(self._env.reset)(own)
            choose = jax.vmap(jnp.where)
            chosen = jax.tree.map(lambda new, old: choose(done, new, old), fresh, states)
            return choose(done, firsts, observations), chosen

        observations, states = jax.lax.cond(done.any(), reset_ended, lambda: (observations, states))
        return keys, states, observations, rewards, done


def apply(params: dict[str, Any], observations: Any) -> Categorical:
    """Two layers of tanh and one without."""
    hidden = jnp.tanh(jnp.tanh(observations @ params["0"]) @ params["1"])
    return Categorical(hidden @ params["2"])


def policy_for(observations: Any, actions: Any) -> JaxPolicy:
    """An MLP of 64x64 with random weights."""
    sizes = (*observations.shape, HIDDEN, HIDDEN, int(actions.n))
    rng = np.random.default_rng(0)
    layers = {
        str(number): rng.normal(0, 1 / rows**0.5, (rows, columns)).astype(np.float32)
        for number, (rows, columns) in enumerate(pairwise(sizes))
    }
    return JaxPolicy(apply, layers)
