"""The least that a head and workers can do in lockstep: actions to the envs, and results back.

No check, no info, no error, nobody may die, and actions are single numbers: what a lockstep in
Python costs beyond bare loops that wait for one another, whoever writes it.
"""

import mmap
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

_WORDS_PER_LINE = 8
_FENCE = threading.Lock()


class BareHead:
    """Steps envs in processes that it has forked, through memory that all of them share."""

    def __init__(
        self, make: Callable[[], gym.Env[Any, Any]], shares: Sequence[Sequence[int]]
    ) -> None:
        space, num_envs = make().observation_space, sum(map(len, shares))
        assert isinstance(space, gym.spaces.Box)
        self._actions = _shared((num_envs,), np.dtype(np.int64))
        self._observations = _shared((num_envs, *space.shape), space.dtype)
        self._rewards = _shared((num_envs,), np.dtype(np.float64))
        self._terminated = _shared((num_envs,), np.dtype(np.bool_))
        self._truncated = _shared((num_envs,), np.dtype(np.bool_))
        # Which turn the head has called for, and which each has ended.
        lines = _shared((1 + len(shares), _WORDS_PER_LINE), np.dtype(np.int64))
        self._called, *self._ended = (memoryview(line) for line in lines)
        self._bell, self._ring = os.pipe()
        self._turn = 0
        self._pids = [self._fork(make, slots, place) for place, slots in enumerate(shares)]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """One turn of all envs."""
        self._actions[...] = actions
        self._called[0] = self._turn = self._turn + 1
        # Two that end at once may both ring: then there is one ring more, in the next turn.
        while not self._are_done(self._turn):
            os.read(self._bell, 1)
        return (
            self._observations.copy(),
            self._rewards.copy(),
            self._terminated.copy(),
            self._truncated.copy(),
        )

    def close(self) -> None:
        """End the processes."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _fork(self, make: Callable[[], gym.Env[Any, Any]], slots: Sequence[int], place: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                # As the workers of ClusterEnv do.
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                self._work([make() for _ in slots], slots, place)
            finally:
                os._exit(1)
        return pid

    def _work(self, envs: Sequence[gym.Env[Any, Any]], slots: Sequence[int], place: int) -> None:
        for env, slot in zip(envs, slots, strict=True):
            env.reset(seed=int(slot))
        rows, turn = slice(slots[0], slots[-1] + 1), 0
        actions, rewards = self._actions[rows], self._rewards[rows]
        terminated, truncated = self._terminated[rows], self._truncated[rows]
        targets, is_over = list(self._observations[rows]), [False] * len(envs)
        while True:
            while self._called[0] == turn:
                os.sched_yield()
            turn += 1
            terminated[...] = truncated[...] = False
            todo = zip(envs, list(actions.copy()), targets, strict=True)
            for row, (env, action, target) in enumerate(todo):
                if is_over[row]:
                    target[...], rewards[row], is_over[row] = env.reset()[0], 0.0, False
                    continue
                target[...], rewards[row], ended, cut, _ = env.step(action)
                if ended or cut:
                    terminated[row], truncated[row], is_over[row] = ended, cut, True
            self._answer(place, turn)

    def _answer(self, place: int, turn: int) -> None:
        """The last wakes the head."""
        self._ended[place][0] = turn
        # Two that answer at once must see each other: taking a lock orders memory.
        with _FENCE:
            pass
        if self._are_done(turn):
            os.write(self._ring, b".")
        os.sched_yield()

    def _are_done(self, turn: int) -> bool:
        for ended in self._ended:  # noqa: SIM110 (a generator costs more)
            if ended[0] != turn:
                return False
        return True


def _shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array that forked processes share."""
    memory = mmap.mmap(-1, max(1, int(np.prod(shape))) * dtype.itemsize)
    return np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape)
