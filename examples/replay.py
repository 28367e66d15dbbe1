"""The replay buffer of the off-policy examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clusterenv import Fragment


class Replay:
    """The last transitions, each with the observation that truly followed."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._count = size, 0
        self._arrays: list[np.ndarray] = []
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self._count, self._size)

    def add(self, fragment: Fragment) -> None:
        """Take every transition of the fragment; the oldest ones make room."""
        columns = [
            fragment.flatten(column)
            for column in (
                fragment.observations[:-1],
                fragment.actions,
                fragment.rewards.astype(np.float32),
                # The end of an episode that was truncated is not the end of its rewards.
                fragment.terminated,
                fragment.next_observations,
            )
        ]
        if not self._arrays:
            self._arrays = [np.empty((self._size, *c.shape[1:]), c.dtype) for c in columns]
        rows = np.arange(self._count, self._count + len(columns[0])) % self._size
        for array, column in zip(self._arrays, columns, strict=True):
            array[rows] = column
        self._count += len(rows)

    def sample(self, size: int) -> list[Tensor]:
        """Observations, actions, rewards, terminated, next observations."""
        rows = self._rng.integers(len(self), size=size)
        return [torch.from_numpy(array[rows]) for array in self._arrays]
