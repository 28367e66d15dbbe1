"""Envs written in JAX: pure functions of one env, in gymnax's form and in Brax' form."""

from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np


class Pole(NamedTuple):
    """The state of a CartPole."""

    place: Any
    speed: Any
    angle: Any
    turning: Any
    time: Any


class CartPole:
    """Gymnasium's CartPole-v1 without its time limit, in gymnax's form."""

    action_space = gym.spaces.Discrete(2)

    def reset(self, key):
        numbers = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        # A weak 0, as gymnax's envs have it.
        state = Pole(*numbers, time=0)
        return _observe(state), state

    def step(self, key, state, action):
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(state.angle), jnp.sin(state.angle)
        push = (force + 0.05 * state.turning**2 * sin) / 1.1
        bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        state = Pole(
            state.place + 0.02 * state.speed,
            state.speed + 0.02 * (push - 0.05 * bend * cos / 1.1),
            state.angle + 0.02 * state.turning,
            state.turning + 0.02 * bend,
            state.time + 1,
        )
        done = (jnp.abs(state.place) > 2.4) | (jnp.abs(state.angle) > 12 * jnp.pi / 180)
        return _observe(state), state, 1.0, done, {"time": state.time}


def _observe(state):
    return jnp.stack([state.place, state.speed, state.angle, state.turning])


class State(NamedTuple):
    """As Brax has it."""

    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    metrics: dict[str, Any]
    info: dict[str, Any]


class Walk:
    """A noisy walk to ±1, in Brax' form; truncated after 10 steps as by Brax' EpisodeWrapper."""

    observation_size, action_size = 3, 2

    def reset(self, key):
        key, own = jax.random.split(key)
        place = jax.random.uniform(own, (2,), minval=-0.5, maxval=0.5)
        zero = jnp.zeros(())
        info = {"rng": key, "steps": zero, "truncation": zero}
        return self._state(place, zero, zero, info)

    def step(self, state, action):
        key, own = jax.random.split(state.info["rng"])
        noise = 0.1 * jax.random.normal(own, (2,))
        place = state.pipeline_state + 0.2 * jnp.clip(action, -1, 1) + noise
        steps = state.info["steps"] + 1
        left = jnp.any(jnp.abs(place) > 1).astype(jnp.float32)
        truncation = jnp.where(steps >= 10, 1 - left, 0.0)
        done = jnp.maximum(left, truncation)
        info = {"rng": key, "steps": steps, "truncation": truncation}
        return self._state(place, -jnp.sum(place**2), done, info)

    def _state(self, place, reward, done, info):
        observation = jnp.concatenate([place, info["steps"][None] / 10])
        return State(place, observation, reward, done, {"distance": jnp.sum(place**2)}, info)


@cache
def _functions(make):
    env = make()
    return [jax.jit(jax.vmap(one)) for one in (env.reset, env.step, jax.random.split)]


class Alone:
    """Such an env without ClusterEnv: a loop of plain vmapped functions.

    Each reset and each step splits the key of its env; an episode's end resets at once.
    """

    def __init__(self, make, seeds):
        self.reset_fn, self.step_fn, self.split = _functions(make)
        self.is_brax = hasattr(make, "action_size")
        self.keys = np.stack([jax.random.PRNGKey(seed) for seed in seeds])

    def reset(self):
        pairs = self.split(self.keys)
        self.keys, own = np.asarray(pairs).swapaxes(0, 1)
        made = self.reset_fn(own)
        observations, self.states = (made.obs, made) if self.is_brax else made
        return np.asarray(observations)

    def step(self, actions):
        """Observations, rewards, terminated, truncated, and the last observations."""
        pairs = self.split(self.keys)
        self.keys, own = np.asarray(pairs).swapaxes(0, 1)
        if self.is_brax:
            self.states = made = self.step_fn(self.states, actions)
            observations, rewards, done = made.obs, made.reward, made.done > 0
            truncated = made.info["truncation"] > 0
        else:
            observations, self.states, rewards, done, _ = self.step_fn(own, self.states, actions)
            truncated = np.zeros(len(done), bool)
        done, truncated = np.asarray(done), np.asarray(truncated)
        last = observations = np.asarray(observations)
        if done.any():
            observations = self._reset_where(done, observations)
        return observations, np.asarray(rewards), done & ~truncated, truncated, last

    def _reset_where(self, done, observations):
        keys, states = self.keys, self.states
        firsts = self.reset()

        def chosen(new, old):
            new = np.asarray(new)
            return np.where(done.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        self.keys = chosen(self.keys, keys)
        self.states = jax.tree.map(chosen, self.states, states)
        return chosen(firsts, observations)
