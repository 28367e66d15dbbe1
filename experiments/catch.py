"""Catch: a small task that can only be learnt from its images."""

from typing import Any

import gymnasium as gym
import numpy as np

_CELLS, _PIXELS = 12, 7


class Catch(gym.Env[np.ndarray, int]):
    """A ball falls down an image of 84x84; the paddle below goes left, stays, or goes right."""

    observation_space = gym.spaces.Box(0, 255, (1, _CELLS * _PIXELS, _CELLS * _PIXELS), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Ball and paddle begin anywhere."""
        super().reset(seed=seed)
        self._row = 0
        self._ball, self._paddle = self.np_random.integers(_CELLS, size=2)
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """1 if the ball is caught, -1 if not, once it is down. The paddle is three cells wide."""
        self._paddle = np.clip(self._paddle + action - 1, 0, _CELLS - 1)
        self._row += 1
        down = self._row == _CELLS - 1
        caught = abs(int(self._ball) - int(self._paddle)) <= 1
        reward = (1.0 if caught else -1.0) if down else 0.0
        return self._image(), reward, down, False, {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((_CELLS, _CELLS), np.uint8)
        cells[self._row, self._ball] = 255
        cells[-1, max(0, self._paddle - 1) : self._paddle + 2] = 255
        return cells.repeat(_PIXELS, 0).repeat(_PIXELS, 1)[None]


gym.register("Catch-v0", Catch)
