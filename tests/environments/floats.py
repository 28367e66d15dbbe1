"""An env that observes as many floats as a humanoid of MuJoCo does."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

PARTS = 94


class Floats(gym.Env):
    """Positions, velocities, their products and forces that are zero; episodes of 200 steps."""

    observation_space = Box(-np.inf, np.inf, (4 * PARTS,), np.float64)
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._age = 0
        self._positions = self.np_random.normal(size=PARTS)
        self._velocities = self.np_random.normal(size=PARTS)
        return self._observe(), {}

    def step(self, action):
        self._age += 1
        self._velocities += 0.1 * self.np_random.normal(size=PARTS)
        self._positions += 0.01 * self._velocities
        return self._observe(), float(self._positions[int(action)]), False, self._age == 200, {}

    def _observe(self):
        products = self._positions * self._velocities
        return np.concatenate([self._positions, self._velocities, products, np.zeros(PARTS)])
