"""Walks: a plain one, one without infos, one that knows its host, one in trouble, a heavy one."""

import os
import socket
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Walk(gym.Env):
    """A seeded random walk that ends after `length` steps."""

    observation_space = Box(-1e6, 1e6, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, length=1000):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        self.position = self.np_random.random(2)
        return self.position.copy(), {"start": float(self.position[0])}

    def step(self, action):
        self.age += 1
        self.position = self.position + action * self.np_random.random(2)
        terminated = self.age >= self.length
        return self.position.copy(), float(self.position.sum()), terminated, False, self._info()

    def _info(self):
        return {"age": self.age}

    def poke(self):
        return self.age

    def pid(self):
        return os.getpid()


class Quiet(Walk):
    """A walk with nothing to say."""

    def reset(self, **options):
        return super().reset(**options)[0], {}

    def _info(self):
        return {}


class Placed(Walk):
    """A walk that knows its host."""

    def __init__(self, length=7):
        super().__init__(length)

    def host(self):
        return socket.gethostname()


class Troubled(Walk):
    """A walk that calls `trouble()` in one of its verbs: every time, or only the `at`-th time.

    It makes the file `sign` just before, so that a test knows how far it has come.
    """

    def __init__(self, trouble, verb="step", at=None, sign=None, length=1000):
        super().__init__(length)
        self.trouble, self.verb, self.at, self.sign = trouble, verb, at, sign
        self.calls = 0
        self._maybe("make")

    def reset(self, *, seed=None, options=None):
        self._maybe("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._maybe("step")
        return super().step(action)

    def poke(self):
        self._maybe("poke")
        return super().poke()

    def close(self):
        self._maybe("close")

    @property
    def mood(self):
        return "calm"

    @mood.setter
    def mood(self, value):
        self._maybe("mood")

    def _maybe(self, verb):
        if verb != self.verb:
            return
        self.calls += 1
        if self.at in (None, self.calls):
            if self.sign is not None:
                Path(self.sign).touch()
            self.trouble()


class Heavy(Walk):
    """A walk with observations and infos of several megabytes."""

    observation_space = Box(0, 255, (1024, 1024), np.uint8)

    def __init__(self, info_bytes):
        super().__init__(length=3)
        self.info_bytes = info_bytes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._image(), self._info()

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return self._image(), reward, terminated, truncated, info

    def _image(self):
        return self.np_random.integers(0, 256, (1024, 1024), np.uint8)

    def _info(self):
        return {"blob": self.np_random.integers(0, 256, self.info_bytes, np.uint8)}
