"""EnvPool's envs, which run in their own threads."""

from __future__ import annotations

import copy
import difflib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from clusterenv.arrays import Array
from clusterenv.backends.envpool_batches import PoolInBatches
from clusterenv.backends.seeded_when_made import SeededWhenMade

AnyVectorEnv = VectorEnv[Any, Any, Any]
_ELSEWHERE = {
    "num_envs": "goes to ClusterEnv",
    "seed": "comes with reset(seed=…)",
    "env_seed": "comes with reset(seed=…)",
    "env_type": "is always 'gymnasium'",
}
# EnvPool's seeds are int32.
_SEED_BITS = 31


class EnvPoolBackend:
    """Each worker runs one EnvPool with its own threads.

    By default there is one worker per host; ``num_workers`` changes that. EnvPool takes its seeds
    when it is created: a reset with a seed creates it anew, with ``seed + i`` for slot *i*.

    Args:
        task: EnvPool's name of the env: ``"Pong-v5"``, ``"HalfCheetah-v5"``.
        num_threads: The threads of each worker; 0 for one per core of its machine.
        batch_size: How many rows EnvPool returns at a time between ``async_reset``, ``recv`` and
            ``send``: those that are ready first, so that nobody waits for the slowest env of a
            worker. By default each worker's share of ClusterEnv's ``batch_size``, if that is less
            than all. Other calls always step all envs of a worker together.
        kwargs: Other arguments of ``envpool.make``: ``stack_num``, ``render_mode`` …

    Example:
        >>> EnvPoolBackend("Pong-v5", num_threads=8, reward_clip=True).task
        'Pong-v5'
    """

    has_own_threads = True

    def __init__(
        self, task: str, *, num_threads: int = 0, batch_size: int | None = None, **kwargs: Any
    ) -> None:
        for name, place in _ELSEWHERE.items():
            if name in kwargs:
                raise TypeError(f"{name} is no argument of EnvPoolBackend: it {place}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if num_threads < 0:
            raise ValueError(f"num_threads={num_threads} must be at least 0: 0 is one per core")
        self.task, self.num_threads, self.kwargs = task, num_threads, kwargs
        self.batch_size = batch_size

    def in_batches_of(self, batch_size: int) -> EnvPoolBackend:
        """The same with workers that return this many rows at a time, unless it is set already."""
        if self.batch_size is not None:
            return self
        other = copy.copy(self)
        other.batch_size = batch_size
        return other

    def build(self, slots: Sequence[int]) -> AnyVectorEnv:
        """The envs of these slots, which their first reset creates."""
        if self.batch_size is None:
            return _Pool(self._make, slots)
        return _PoolOfBothKinds(self._make, slots, min(self.batch_size, len(slots)))

    def _make(
        self, slots: Sequence[int], seeds: Sequence[int], batch_size: int = 0
    ) -> AnyVectorEnv:
        try:
            import envpool
        except ImportError as error:
            raise ImportError(
                "EnvPoolBackend needs EnvPool: pip install 'clusterenv[envpool]'"
            ) from error
        self._check_task(envpool.list_all_envs())
        threads = self.num_threads or len(os.sched_getaffinity(0))
        with warnings.catch_warnings():
            # It warns of bounds that are not float32, about which nobody can do anything.
            warnings.simplefilter("ignore")
            try:
                pool: AnyVectorEnv = envpool.make(
                    self.task,
                    env_type="gymnasium",
                    num_envs=len(slots),
                    batch_size=batch_size,
                    num_threads=min(threads, len(slots)),
                    seed=[seed % 2**_SEED_BITS for seed in seeds],
                    **self.kwargs,
                )
            except TypeError as error:
                names = ", ".join(self.kwargs) or "no others"
                raise TypeError(f"EnvPool's {self.task} does not take {names}: {error}") from error
            _ = pool.single_observation_space, pool.single_action_space
        return pool

    def _check_task(self, tasks: Sequence[str]) -> None:
        if self.task in tasks:
            return
        close = difflib.get_close_matches(self.task, tasks, n=3) or ["envpool.list_all_envs()"]
        raise ValueError(f"EnvPool has no {self.task!r}; see {', '.join(close)}")

    def for_slots(self, slots: Sequence[int]) -> EnvPoolBackend:
        """The same for every worker."""
        return self


class _Pool(SeededWhenMade):
    """Renders all envs; an EnvPool by itself renders only one, unless told which."""

    def render(self) -> Any:
        """A picture of each env."""
        pool: Any = self.engine
        return tuple(pool.render(env_ids=np.arange(self.num_envs)))


class _PoolOfBothKinds(_Pool):
    """Steps all its envs together after ``reset``, and in batches after ``begin_batches``.

    EnvPool can only do one or the other: it is created anew when the other is asked for.
    """

    def __init__(
        self, make: Callable[..., AnyVectorEnv], slots: Sequence[int], batch_size: int
    ) -> None:
        super().__init__(make, slots)
        self._batch_size = batch_size
        self._batches: PoolInBatches | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``; then step all together."""
        if self._batches is not None:
            self.close_extras()
        return super().reset(seed=seed, options=options)

    def begin_batches(self, seeds: Sequence[int | None], envs: Array) -> PoolInBatches:
        """Start a reset of some envs; from now on, those that are ready first are returned.

        If all envs are reset with seeds, the pool is created anew.
        """
        is_new = len(envs) == self.num_envs and any(seed is not None for seed in seeds)
        if self._batches is None or is_new:
            self.close_extras()
            self._seeds = self._seeds_from(_by_env(seeds, envs, self.num_envs))
            self._batches = PoolInBatches(self._make_more, self.num_envs, self._batch_size)
            self._engine = self._batches.pool
        elif len(envs) == self.num_envs:
            # What they were doing is no longer of interest.
            self._batches.drain()
        self._batches.reset(envs)
        return self._batches

    def _make_more(self, num_envs: int, batch_size: int) -> AnyVectorEnv:
        """A pool with some more envs, whose seeds do not matter."""
        seeds = [*self._seeds, *range(num_envs - self.num_envs)]
        make: Any = self._make
        pool: AnyVectorEnv = make(range(num_envs), seeds, batch_size)
        return pool

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        super().close_extras(**kwargs)
        self._batches = None


def _by_env(seeds: Sequence[int | None], envs: Array, num_envs: int) -> list[int | None]:
    by_env: list[int | None] = [None] * num_envs
    for env, seed in zip(envs.tolist(), seeds, strict=True):
        by_env[env] = seed
    return by_env
