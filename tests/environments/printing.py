"""Envs that print, and envs whose behaviour depends on the order of a set of strings."""

import os
import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np

from tests.environments.walks import Walk

WORDS = [f"word {number}" for number in range(50)]


class Chatty(Walk):
    """Prints `lines` lines of a hundred bytes in each step, itself or by a child process."""

    def __init__(self, lines, by_child=False):
        super().__init__(1000)
        self._lines, self._by_child = lines, by_child

    def step(self, action):
        if self._by_child:
            script = f"for n in range({self._lines}): print('.' * 99)"
            subprocess.run([sys.executable, "-c", script], check=True)
        else:
            for _ in range(self._lines):
                print("." * 99)
        return super().step(action)


class Ordered(gym.Env):
    """Its observations are the order in which it meets the words of a set."""

    observation_space = gym.spaces.Box(0, 100, (len(WORDS),), np.int64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._order(), {"hash_seed": os.environ.get("PYTHONHASHSEED", "")}

    def step(self, action):
        return self._order(), float(self._order()[0]), False, False, {}

    def _order(self):
        return np.array([WORDS.index(word) for word in set(WORDS)])


def chatty(num_envs, lines, by_child=False):
    """One callable per slot."""
    return [partial(Chatty, lines, by_child)] * num_envs
