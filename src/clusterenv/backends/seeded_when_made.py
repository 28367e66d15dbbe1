"""Engines that take their seeds when they are created, behind ``reset(seed=…)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

AnyVectorEnv = VectorEnv[Any, Any, Any]
_SEED_BITS = 31


class SeededWhenMade(VectorEnv[Any, Any, Any]):
    """Creates its engine at the first reset, and anew at each reset with a seed.

    Before that, one env is created to learn the spaces: creating all may take long.

    Args:
        make: Creates the engine for some slots with their seeds.
        slots: The slots of the worker.
    """

    def __init__(
        self, make: Callable[[Sequence[int], Sequence[int]], AnyVectorEnv], slots: Sequence[int]
    ) -> None:
        self._make, self._slots = make, tuple(slots)
        self._engine: AnyVectorEnv | None = None
        self._seeds: list[int] = []
        described = self._made(self._slots[:1], _fresh_seeds(1))
        self.num_envs = len(self._slots)
        self.single_observation_space = described.single_observation_space
        self.single_action_space = described.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata, self.render_mode = described.metadata, described.render_mode
        described.close()

    def _made(self, slots: tuple[int, ...], seeds: Sequence[int]) -> AnyVectorEnv:
        engine = self._make(slots, seeds)
        if not isinstance(engine, VectorEnv):
            raise TypeError(
                f"a factory(slots, seeds) returned {engine!r:.80} of type "
                f"{type(engine).__qualname__}, not a gymnasium.vector.VectorEnv"
            )
        if engine.num_envs != len(slots):
            raise ValueError(
                f"a factory(slots, seeds) returned {engine.num_envs} envs for {len(slots)} slots: "
                "make one for each of `slots`"
            )
        return engine

    def _alike(self, engine: AnyVectorEnv) -> AnyVectorEnv:
        """``engine``, if it is like the one that was created to learn the spaces."""
        own = self.single_observation_space, self.single_action_space
        others = engine.single_observation_space, engine.single_action_space
        mode, other = (one.metadata.get("autoreset_mode") for one in (self, engine))
        if own == others and mode == other:
            return engine
        differs = "spaces" if own != others else "autoreset_mode"
        values = (own, others) if own != others else (mode, other)
        engine.close()
        raise ValueError(
            f"a factory(slots, seeds) returned an engine with {differs} {values[1]!s:.200} for "
            f"{self.num_envs} slots, and one with {values[0]!s:.200} for one slot: they must not "
            "depend on how many slots there are"
        )

    @property
    def engine(self) -> AnyVectorEnv:
        """The current engine."""
        if self._engine is None:
            raise RuntimeError("the engine is made by the first reset: call reset before this")
        return self._engine

    @property
    def unwrapped(self) -> AnyVectorEnv:  # type: ignore[override]
        """The engine itself, once it is created."""
        return self if self._engine is None else self._engine.unwrapped

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``, which cannot be seeded alone."""
        if options is not None and "reset_mask" in options:
            self._refuse_seeds(seed)
        elif self._engine is None or seed is not None:
            self.close_extras()
            self._seeds = self._seeds_from(seed)
            self._engine = self._alike(self._made(self._slots, self._seeds))
        observations, infos = self.engine.reset(options=options)
        return observations, infos

    def _refuse_seeds(self, seed: Any) -> None:
        seeds = [seed] if seed is None or isinstance(seed, int) else seed
        if any(one is not None for one in seeds):
            raise ValueError(
                f"the engine takes its seeds when it is made, so that seed={seed} cannot reset "
                "some of its envs: reset all of them with seeds, or some without"
            )

    def _seeds_from(self, seed: int | Sequence[int | None] | None) -> list[int]:
        if isinstance(seed, int):
            return list(range(seed, seed + self.num_envs))
        fresh = _fresh_seeds(self.num_envs)
        if seed is None:
            return fresh
        return [new if one is None else one for one, new in zip(seed, fresh, strict=True)]

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds that the engine was created with."""
        return tuple(self._seeds)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs."""
        assert self._engine is not None
        return self._engine.step(actions)

    def render(self) -> Any:
        """What the engine renders."""
        return self.engine.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __getattr__(self, name: str) -> Any:
        """Any other attribute of the engine."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.engine, name)


def _fresh_seeds(count: int) -> list[int]:
    """Seeds from the operating system, as Gymnasium's envs take them if none is given."""
    words = np.random.SeedSequence().generate_state(count)
    return [int(word) % 2**_SEED_BITS for word in words]
