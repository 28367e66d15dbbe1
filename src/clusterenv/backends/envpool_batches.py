"""EnvPool's own asynchronous mode: returns those envs under way that are ready first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from clusterenv.arrays import Array

Received = tuple[Array, Any, Array, Array, Array, dict[str, Any]]
"""The envs, their observations, rewards and flags, and the infos, with a row for each."""


class PoolInBatches:
    """An EnvPool that returns ``batch_size`` rows at a time, and eventually all it was sent.

    EnvPool itself waits for ever if fewer envs than ``batch_size`` are under way. So this one has
    ``batch_size - 1`` hidden envs, and resets some of them to fill such a batch.

    Args:
        make: Creates a pool of this many envs, with this ``batch_size``.
        num_envs: How many visible envs there are.
        batch_size: How many rows EnvPool returns at a time.
    """

    def __init__(self, make: Callable[[int, int], Any], num_envs: int, batch_size: int) -> None:
        self.num_envs, self.batch_size = num_envs, batch_size
        self.pool: VectorEnv[Any, Any, Any] = make(num_envs + batch_size - 1, batch_size)
        self.num_under_way = 0
        """How many of the visible envs were sent something and have not come back."""
        self._idle = list(range(num_envs, num_envs + batch_size - 1))
        """The hidden envs that are not under way."""

    @property
    def is_full(self) -> bool:
        """Whether enough envs are under way for a batch."""
        return self.num_under_way + self._num_fillers >= self.batch_size

    @property
    def _num_fillers(self) -> int:
        return self.batch_size - 1 - len(self._idle)

    def reset(self, envs: Array) -> None:
        """Start a reset of these envs."""
        self._reset(envs)
        self.num_under_way += len(envs)

    def _reset(self, envs: Sequence[int] | Array) -> None:
        pool: Any = self.pool
        pool._reset(np.asarray(envs, np.int32))

    def send(self, actions: Any, envs: Array) -> None:
        """Start a step of these envs."""
        pool: Any = self.pool
        pool.send(actions, envs)
        self.num_under_way += len(envs)

    def receive(self) -> Received:
        """Wait for the first envs that are ready."""
        self._fill()
        pool: Any = self.pool
        while True:
            observations, rewards, terminated, truncated, infos = pool.recv()
            envs = infos["env_id"]
            if (envs < self.num_envs).all():
                break
            is_seen = envs < self.num_envs
            self._idle += envs[~is_seen].tolist()
            if is_seen.any():
                rows = (observations, rewards, terminated, truncated, infos)
                observations, rewards, terminated, truncated, infos = _rows_of(rows, is_seen)
                envs = envs[is_seen]
                break
            self._fill()
        self.num_under_way -= len(envs)
        return envs, observations, rewards, terminated, truncated, infos

    def _fill(self) -> None:
        count = self.batch_size - self.num_under_way - self._num_fillers
        if count > 0:
            self._reset(self._idle[:count])
            del self._idle[:count]

    def drain(self) -> None:
        """Wait for all envs that are under way."""
        while self.num_under_way:
            self.receive()


def _rows_of(tree: Any, chosen: Array) -> Any:
    """Some rows of arrays in tuples and dicts."""
    if isinstance(tree, dict):
        return {name: _rows_of(value, chosen) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_rows_of(value, chosen) for value in tree)
    return tree[chosen]
