"""Envs for the tests of policies: short episodes of every kind, and steps that leave a trace."""

import os
import zlib
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tests.spaces import ALL_SPACES
from tests.zoo import SpaceEnv, describe

COMPOSITE_ACTIONS = {
    "dict": Dict(kind=Discrete(3), push=Box(-1.0, 1.0, (2,), np.float32)),
    "tuple": Tuple((Discrete(3), Tuple((Box(-1.0, 1.0, (2,), np.float32),)))),
}


class Count(gym.Env):
    """Observes (a number drawn at reset, its age, an echo of the last action); age is its reward.

    An episode is truncated after `length` steps; every third one terminates there instead. With
    a `trace`, that file grows by a byte per step.
    """

    observation_space = Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self, length=5, action_space=None, trace=None):
        self.action_space = Discrete(2) if action_space is None else action_space
        self.length, self.trace, self.episodes = length, trace, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes = 1 if seed is not None else self.episodes + 1
        self.age, self.echo, self.mark = 0, 0.0, self.np_random.random()
        return self._observation(), {}

    def step(self, action):
        self.age += 1
        self.echo = float(zlib.crc32(describe(action).encode()) % 1000)
        if self.trace is not None:
            leave_a_byte(self.trace)
        ended, terminates = self.age >= self.length, self.episodes % 3 == 0
        reward = float(self.age)
        return self._observation(), reward, ended and terminates, ended and not terminates, {}

    def pid(self):
        return os.getpid()

    def _observation(self):
        return np.array([self.mark, self.age, self.echo])


class Swell(Count):
    """In every second stretch of `stretch` steps it ends an episode once more than before."""

    def __init__(self, stretch, trace=None):
        super().__init__(trace=trace)
        self.stretch, self.steps = stretch, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0 if seed is not None else self.steps
        return super().reset(seed=seed, options=options)

    def step(self, action):
        number, place = divmod(self.steps, self.stretch)
        self.steps += 1
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, bool(number % 2) and place <= number // 2, info


def leave_a_byte(path):
    with open(path, "ab") as file:
        file.write(b".")


ENVS = {
    "CartPole": partial(gym.make, "CartPole-v1"),
    "short CartPole": partial(gym.make, "CartPole-v1", max_episode_steps=12),
    "Pendulum": partial(gym.make, "Pendulum-v1", max_episode_steps=9),
    "dict observations": partial(SpaceEnv, ALL_SPACES["dict"], Discrete(3), info_kinds=()),
    "tuple observations": partial(SpaceEnv, ALL_SPACES["tuple"], Discrete(3), info_kinds=()),
    "count": Count,
    "dict actions": partial(Count, action_space=COMPOSITE_ACTIONS["dict"]),
    "tuple actions": partial(Count, action_space=COMPOSITE_ACTIONS["tuple"]),
    "several discrete actions": partial(Count, action_space=MultiDiscrete([3, 2, 4])),
    "binary actions": partial(Count, action_space=MultiBinary(4)),
}
