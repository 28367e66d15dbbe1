"""The VectorEnvs that Gymnasium makes from an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from clusterenv.backends.ale import with_seeds_by_env


class EntryPointBackend:
    """Each worker runs the VectorEnv that ``gymnasium.make_vec`` makes from an id for its slots.

    Args:
        env: A Gymnasium id, or its ``EnvSpec``, which travels: workers need not register it.
        vectorization_mode: As in ``gymnasium.make_vec``. By default the env's own VectorEnv.
        kwargs: Other arguments of ``gymnasium.make_vec``.

    Example:
        >>> EntryPointBackend("CartPole-v1").spec.id
        'CartPole-v1'
    """

    def __init__(
        self, env: str | EnvSpec, *, vectorization_mode: str = "vector_entry_point", **kwargs: Any
    ) -> None:
        spec = gymnasium.spec(env) if isinstance(env, str) else env
        if vectorization_mode == "vector_entry_point" and spec.vector_entry_point is None:
            raise ValueError(
                f"{spec.id} has no VectorEnv of its own: pass vectorization_mode='sync', or "
                "ClusterEnv the id itself"
            )
        self.spec, self.vectorization_mode, self.kwargs = spec, vectorization_mode, kwargs

    def build(self, slots: Sequence[int]) -> VectorEnv[Any, Any, Any]:
        """The VectorEnv for these slots."""
        mode: Any = self.vectorization_mode
        env = gymnasium.make_vec(
            self.spec, num_envs=len(slots), vectorization_mode=mode, **self.kwargs
        )
        return with_seeds_by_env(env)

    def for_slots(self, slots: Sequence[int]) -> EntryPointBackend:
        """The same for every worker."""
        return self
