"""Drives a ready VectorEnv, which always steps all of a worker's slots together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.worker.rows import Landing, Outcome
from clusterenv.worker.stepper import UserCodeError


class VectorStepper:
    """Steps one VectorEnv whose env *i* is the worker's *i*-th slot."""

    def __init__(self, env: VectorEnv[Any, Any, Any], slots: Sequence[int]) -> None:
        if env.num_envs != len(slots):
            raise ValueError(
                f"the backend returned a VectorEnv of {env.num_envs} envs for {len(slots)} slots"
            )
        self._env = env
        self._slots = tuple(slots)

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots; some of them only by Gymnasium's own ``reset_mask``."""
        if tuple(slots) != self._slots:
            mask = np.isin(self._slots, slots)
            options = {**(options or {}), "reset_mask": mask}
            by_slot = dict(zip(slots, seeds, strict=True))
            seeds = [by_slot.get(slot) for slot in self._slots]
        try:
            observations, infos = self._env.reset(seed=_seed_argument(seeds), options=options)
        except Exception as error:
            raise UserCodeError(None) from error
        rows = [self._slots.index(slot) for slot in slots]
        zeros, no = np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        return self._outcome(rows, observations, zeros, no, no, infos)

    def step(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step all slots."""
        if tuple(slots) != self._slots:
            raise UserCodeError(None) from ValueError(
                f"a VectorEnv steps all its envs together: send actions for slots "
                f"{self._slots[0]}..{self._slots[-1]} at once, not for {list(slots)} alone"
            )
        if not isinstance(actions, np.ndarray):
            space = self._env.single_action_space
            actions = concatenate(space, actions, create_empty_array(space, len(slots)))  # type: ignore[assignment, arg-type]
        try:
            observations, rewards, terminated, truncated, infos = self._env.step(actions)
        except Exception as error:
            raise UserCodeError(None, actions) from error
        return self._outcome(None, observations, rewards, terminated, truncated, infos)

    def step_for_rollout(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step all slots; only a VectorEnv that resets within the step can do this."""
        mode = self._env.metadata.get("autoreset_mode")
        if mode is None or AutoresetMode(mode) is not AutoresetMode.SAME_STEP:
            raise UserCodeError(None) from ValueError(
                f"rollouts need a VectorEnv with autoreset_mode=SAME_STEP, this one has {mode}"
            )
        return self.step(slots, actions)

    def _outcome(
        self,
        rows: Sequence[int] | None,
        observations: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        infos: dict[str, Any],
    ) -> Outcome:
        by_slot = [
            (slot, info)
            for slot, info in zip(self._slots, split_infos(infos, len(self._slots)), strict=True)
            if info
        ]
        if rows is not None and len(rows) < len(self._slots):
            space = self._env.single_observation_space
            observations = _take_rows(space, observations, rows)
        return Outcome(observations, rewards, terminated, truncated, by_slot, batched=True)

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method, or read an attribute, of every env."""
        try:
            return list(self._env.call(name, *args, **kwargs))  # type: ignore[attr-defined]
        except Exception as error:
            raise UserCodeError(None) from error

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        try:
            self._env.set_attr(name, list(values))  # type: ignore[attr-defined]
        except Exception as error:
            raise UserCodeError(None) from error

    def close(self) -> None:
        """Close the VectorEnv."""
        self._env.close()


def split_infos(infos: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The infos of each env, from the infos of a VectorEnv."""
    split: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        parts = split_infos(value, count) if isinstance(value, dict) else value
        if isinstance(parts, np.ndarray) and parts.dtype == np.bool_:
            # Gymnasium makes a bool array of bools, but an object array of numpy bools.
            parts = parts.tolist()
        for row in range(count):
            if mask is None or mask[row]:
                split[row][key] = parts[row]
    return split


def _take_rows(space: Space[Any], observations: Any, rows: Sequence[int]) -> Any:
    columns = [(leaf, leaf.of(observations)) for leaf in leaves_of(space)]
    taken = [c[list(rows)] if leaf.is_array else tuple(c[r] for r in rows) for leaf, c in columns]
    return join_leaves(space, taken)


def _seed_argument(seeds: Sequence[int | None]) -> Any:
    """One int where that means the same: VectorEnvs need not understand lists."""
    if all(seed is None for seed in seeds):
        return None
    first = seeds[0]
    if first is not None and list(seeds) == list(range(first, first + len(seeds))):
        return first
    return list(seeds)
