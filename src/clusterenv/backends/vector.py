"""Environments that are vectorised already: one ready-made VectorEnv per worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.vector import VectorEnv

from clusterenv.backends.ale import with_seeds_by_env
from clusterenv.backends.seeded_when_made import SeededWhenMade
from clusterenv.building_slots import building

AnyVectorEnv = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class VectorBackend:
    """Each worker runs one VectorEnv that the factory returns for its slots.

    ``factory(num_envs)`` is for engines that take their seeds in ``reset(seed=…)``, as a list with
    one per env (Gymnasium's own, ALE). An engine with one random number generator for all its
    envs, such as Gymnasium's native CartPole, is seeded with the seed of the worker's first slot;
    what its envs do then depends on the number of workers.

    ``factory(slots, seeds)`` is for engines that take seeds only when they are created (EnvPool).
    The first reset calls it, and so does each reset with a seed, which creates the engine anew;
    before that it is called once with one slot, to learn the spaces. Slot *i* gets ``seed + i``,
    for any number of workers.

    Example:
        >>> VectorBackend(lambda n: make_vec("CartPole-v1", n, "sync"))  # doctest: +SKIP
    """

    factory: Callable[..., AnyVectorEnv]

    def build(self, slots: Sequence[int]) -> AnyVectorEnv:
        """The VectorEnv for these slots."""
        with building(slots[0]):
            return self._build(slots)

    def _build(self, slots: Sequence[int]) -> AnyVectorEnv:
        if takes_seeds(self.factory):
            return SeededWhenMade(self.factory, slots)
        env = self.factory(len(slots))
        if not isinstance(env, VectorEnv):
            raise TypeError(
                f"the factory of VectorBackend returned {env!r:.80} of type "
                f"{type(env).__qualname__}, not a gymnasium.vector.VectorEnv"
            )
        return with_seeds_by_env(env)

    def for_slots(self, slots: Sequence[int]) -> VectorBackend:
        """The same for every worker."""
        return self


def takes_seeds(factory: Callable[..., Any]) -> bool:
    """Whether it is called as ``factory(slots, seeds)`` and not as ``factory(num_envs)``."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some functions written in C
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(needed) == 2
