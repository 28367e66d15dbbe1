"""Environments with one bad habit each: they cast, misfit, fail, or wait."""

import os
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class LooseEnv(gym.Env):
    """Returns observations that fit its space only after a cast, as many real envs do."""

    observation_space = Dict(number=Discrete(9), vector=Box(-9.0, 9.0, (2,), np.float32))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        return self._observation(), 1, bool(self.np_random.random() < 0.2), False, {}

    def _observation(self):
        return {"vector": list(self.np_random.random(2)), "number": int(self.np_random.integers(9))}


class MisfitEnv(gym.Env):
    """Promises three numbers and returns `size` of them."""

    observation_space = Box(0.0, 9.0, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(self.size, np.float32), {}


class FailingEnv(gym.Env):
    """Raises ValueError on `reset(seed=13)`, and on action 1."""

    observation_space = Discrete(3)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed == 13:
            raise ValueError("no luck with seed 13")
        return 0, {}

    def step(self, action):
        if action == 1:
            raise ValueError("action 1 is broken")
        return 1, 0.0, False, False, {}


class GateEnv(gym.Env):
    """One of its verbs (`reset`, `step`, `knock`) waits until the file `gate` exists."""

    observation_space = Box(0.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, gate, verb):
        self.gate = gate
        self.verb = verb

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._wait("reset")
        return self.np_random.random(2).astype(np.float32), {}

    def step(self, action):
        self._wait("step")
        return self.np_random.random(2).astype(np.float32), 1.0, False, False, {}

    def knock(self):
        self._wait("knock")
        return "open"

    def _wait(self, verb):
        while verb == self.verb and not os.path.exists(self.gate):
            time.sleep(0.005)
