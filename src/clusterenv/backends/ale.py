"""The Arcade Learning Environment's own vectorised games."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

AnyVectorEnv = VectorEnv[Any, Any, Any]
_NO_SEED = -1
_SEED_BITS = 31


class AtariBackend:
    """Each worker runs one ``ale_py.vector_env.AtariVectorEnv`` with its own threads.

    By default there is one worker per host; ``num_workers`` changes that. Seeds come with
    ``reset(seed=…)``: slot *i* gets ``seed + i``.

    Args:
        game: The game, as ALE names its ROMs: ``"pong"``, ``"ms_pacman"``.
        num_threads: The threads of each worker; 0 for ALE's own choice.
        kwargs: Other arguments of ``AtariVectorEnv``: ``frameskip``, ``autoreset_mode`` …

    Example:
        >>> AtariBackend("pong", num_threads=8, reward_clipping=False).game
        'pong'
    """

    has_own_threads = True

    def __init__(self, game: str, *, num_threads: int = 0, **kwargs: Any) -> None:
        for name in ("num_envs", "batch_size"):
            if name in kwargs:
                raise TypeError(f"{name} goes to ClusterEnv, not to AtariBackend")
        if num_threads < 0:
            raise ValueError(f"num_threads={num_threads} must be at least 0: 0 is ALE's own choice")
        self.game, self.num_threads, self.kwargs = game, num_threads, kwargs

    def build(self, slots: Sequence[int]) -> AnyVectorEnv:
        """The games of these slots."""
        try:
            from ale_py import roms
            from ale_py.vector_env import AtariVectorEnv
        except ImportError as error:
            raise ImportError("AtariBackend needs ALE: pip install 'clusterenv[ale]'") from error
        names = roms.get_all_rom_ids()
        if self.game not in names:
            raise ValueError(f"ALE has no game {self.game!r}: it has {', '.join(sorted(names))}")
        env = AtariVectorEnv(self.game, len(slots), num_threads=self.num_threads, **self.kwargs)
        return with_seeds_by_env(env)

    def for_slots(self, slots: Sequence[int]) -> AtariBackend:
        """The same for every worker."""
        return self


def with_seeds_by_env(env: AnyVectorEnv) -> AnyVectorEnv:
    """``env``, made to take seeds as Gymnasium gives them if it is ALE's."""
    is_ales = type(env.unwrapped).__module__.startswith("ale_py.")
    return AtariSeeds(env) if is_ales else env


if TYPE_CHECKING:
    _VectorWrapper = VectorWrapper[Any, Any, Any]
else:  # before Gymnasium 1.4 it takes no types
    _VectorWrapper = VectorWrapper


class AtariSeeds(_VectorWrapper):
    """Turns a list with a seed per env into the array that ALE wants, for the envs being reset."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``."""
        return self.env.reset(seed=self._seeds(seed, options), options=options)

    def _seeds(self, seed: Any, options: Any) -> Any:
        if seed is None:
            return None
        if isinstance(seed, int):
            seed = range(seed, seed + self.num_envs)
        by_env = np.array([_NO_SEED if one is None else one % 2**_SEED_BITS for one in seed])
        mask = None if options is None else options.get("reset_mask")
        return by_env if mask is None else by_env[mask]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            # ALE leaves uninitialised memory in these rows.
            infos["final_obs"][~(terminated | truncated)] = 0
        return observations, rewards, terminated, truncated, infos
