"""Environments that count their steps: episodes of a known length, steps that leave a trace."""

import os
import zlib

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from tests.environments.sampling import describe


class CounterEnv(gym.Env):
    """Counts its steps in one observation buffer; `reuse=True` hands out that very buffer."""

    observation_space = Box(0.0, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, reuse, episode_length=3):
        self.reuse = reuse
        self.episode_length = episode_length
        self.buffer = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        self.buffer[:] = self.np_random.integers(1000)
        return self._observation(), {}

    def step(self, action):
        self.age += 1
        self.buffer += 1
        info = {"buffer": self._observation()}
        return self._observation(), 1.0, self.age == self.episode_length, False, info

    def _observation(self):
        return self.buffer if self.reuse else self.buffer.copy()


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
