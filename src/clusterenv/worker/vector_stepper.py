"""Drives a ready-made VectorEnv, which always steps all of a worker's slots together.

Its arrays stay arrays: no Python object is made per env, unless its episode ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from clusterenv.arrays import Array
from clusterenv.plain.batched_infos import (
    BatchedInfos,
    Tree,
    as_if_reset_at_once,
    as_tree,
    take_rows,
)
from clusterenv.plain.spaces import Leaf, join_leaves, leaves_of
from clusterenv.worker.engine_calls import (
    call_every_env,
    device_engine,
    resets_by_mask,
    set_attr_of_every_env,
)
from clusterenv.worker.rows import BatchedEnds, Landing, Outcome, fill, fill_flags
from clusterenv.worker.stepper import UserCodeError

AnyVectorEnv = VectorEnv[Any, Any, Any]
_USUAL_REWARDS = np.dtype(np.float64)


_FINALS = ("final_obs", "_final_obs")


class VectorStepper:
    """Steps one VectorEnv whose env *i* is the worker's *i*-th slot.

    Args:
        env: The VectorEnv.
        slots: The worker's slots.
        make_two: Makes another VectorEnv, of two envs at most, to try things with.
    """

    def __init__(
        self,
        env: AnyVectorEnv,
        slots: Sequence[int],
        make_two: Callable[[], AnyVectorEnv] | None = None,
    ) -> None:
        if env.num_envs != len(slots):
            raise ValueError(
                f"the backend returned a VectorEnv of {env.num_envs} envs for {len(slots)} slots: "
                "make one per slot, in VectorBackend's factory or in your backend's build(slots)"
            )
        self._env, self._make_two = env, make_two
        self._slots = tuple(slots)
        self._numbers = np.array(self._slots, np.int64)
        self._leaves = leaves_of(env.single_observation_space)
        mode = env.metadata.get("autoreset_mode")
        self._device = device_engine(env)
        # What `step` does in rollouts, in any autoreset mode.
        self._step_at_once = env.step if self._device is None else self._device.step_and_reset
        is_same_step = mode is not None and AutoresetMode(mode) is AutoresetMode.SAME_STEP
        is_next_step = mode is not None and AutoresetMode(mode) is AutoresetMode.NEXT_STEP
        self._may_not_reset = is_next_step and self._device is None
        self._resets_at_once = is_same_step or self._device is not None
        self._told_rewards = _USUAL_REWARDS
        self._is_reset = False
        self._can_mask = None if self._device is None else True

    # Reset.

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots; if not all, by Gymnasium's own ``reset_mask``."""
        try:
            if tuple(slots) == self._slots:
                observations, infos = self._env.reset(seed=_seed_argument(seeds), options=options)
                rows = np.arange(len(slots))
            else:
                rows = np.searchsorted(self._numbers, np.asarray(slots))
                observations, infos = self._reset_some(rows, seeds, options)
            tree = self._tree_of(infos, rows)
        except Exception as error:
            raise UserCodeError(None) from error
        self._is_reset = True
        zeros, no = np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        outcome = Outcome(observations, zeros, no, no, batched=True, none_ended=True)
        if self._device is not None:
            outcome.on_device = self._device.on_device
        if tree:
            outcome.infos = BatchedInfos(self._numbers[rows], tree)
        return outcome

    def _reset_some(
        self, rows: Array, seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Observations and infos of these rows only; without ``seeds`` random numbers go on."""
        by_row: list[int | None] = []
        if seeds:
            by_row = [None] * len(self._slots)
            for row, seed in zip(rows.tolist(), seeds, strict=True):
                by_row[row] = seed
        # If it replaces a lost one: most engines cannot begin with some of their envs.
        if self._is_reset:
            self._assert_resets_by_mask()
            mask = np.zeros(len(self._slots), np.bool_)
            mask[rows] = True
            options = {**(options or {}), "reset_mask": mask}
        observations, infos = self._env.reset(seed=_seed_argument(by_row), options=options)
        return self._rows_of_observations(observations, rows), infos

    def _assert_resets_by_mask(self) -> None:
        if self._can_mask is None:
            self._can_mask = len(self._slots) == 1 or resets_by_mask(self._env, self._make_two)
        if not self._can_mask:
            raise ValueError(
                f"{type(self._env.unwrapped).__name__} ignores options['reset_mask'] and resets "
                "all its envs: use a VectorEnv that supports it, such as "
                "gymnasium.make_vec(…, vectorization_mode='sync')"
            )

    def _rows_of_observations(self, observations: Any, rows: Array) -> Any:
        """The rows that were reset, whether the VectorEnv returns only these or all."""
        taken = []
        for leaf in self._leaves:
            column = leaf.of(observations)
            if len(column) != len(rows):
                column = column[rows] if leaf.is_array else tuple(column[row] for row in rows)
            taken.append(column)
        return join_leaves(self._env.single_observation_space, taken)

    def _tree_of(self, infos: dict[str, Any], rows: Array) -> Tree:
        """Likewise for infos."""
        if not infos:
            return {}
        count = len(self._slots)
        try:
            tree = with_slots(as_tree(infos, count), self._numbers)
        except ValueError:
            return with_slots(as_tree(infos, len(rows)), self._numbers)
        return tree if len(rows) == count else take_rows(tree, rows)

    # Step.

    def step(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step all slots."""
        outcome, infos = self._step(slots, actions, landing, self._env.step)
        rewards = self._reward_dtype(outcome)
        if infos or rewards:
            try:
                tree = with_slots(as_tree(_finals_by_row(infos), len(self._slots)), self._numbers)
            except ValueError as error:
                raise UserCodeError(None, actions) from error
            outcome.infos = BatchedInfos(self._numbers, tree, rewards)
        return outcome

    def _step(
        self,
        slots: Sequence[int],
        actions: Sequence[Any],
        landing: Landing | None,
        step: Callable[[Any], Any],
    ) -> tuple[Outcome, dict[str, Any]]:
        if len(slots) != len(self._slots):
            raise UserCodeError(None) from ValueError(
                f"a VectorEnv steps all its envs together: send actions for slots "
                f"{self._slots[0]}..{self._slots[-1]} at once, not for {list(slots)} alone"
            )
        if not isinstance(actions, np.ndarray):
            space = self._env.single_action_space
            actions = concatenate(space, actions, create_empty_array(space, len(slots)))  # type: ignore[assignment, arg-type]
        try:
            observations, rewards, terminated, truncated, infos = step(actions)
            none_ended = not (np.any(terminated) or np.any(truncated))
        except Exception as error:
            raise UserCodeError(None, actions) from error
        outcome = Outcome(observations, rewards, terminated, truncated, batched=True)
        outcome.none_ended = none_ended
        if self._device is not None:
            outcome.on_device = self._device.on_device
        if "final_obs" in infos and not none_ended and self._may_not_reset:
            raise UserCodeError(None) from ValueError(
                f"{type(self._env.unwrapped).__name__} declares autoreset_mode NEXT_STEP but "
                "resets within the step (its infos have final_obs): set "
                'metadata["autoreset_mode"] to AutoresetMode.SAME_STEP'
            )
        return (outcome if landing is None else _land(outcome, landing)), infos

    def _reward_dtype(self, outcome: Outcome) -> str:
        """The dtype of the rewards, if the head does not know it yet."""
        dtype = getattr(outcome.rewards, "dtype", _USUAL_REWARDS)
        if dtype == self._told_rewards:
            return ""
        self._told_rewards = dtype
        return str(dtype.str)

    # Rollouts.

    def step_for_rollout(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step all slots; in any autoreset mode, the end of an episode resets at once."""
        outcome, infos = self._step(slots, actions, landing, self._step_at_once)
        if infos:
            outcome.infos = self._infos_of_rollout(infos, outcome, actions)
        if outcome.none_ended:
            return outcome
        ended = np.flatnonzero(np.logical_or(outcome.terminated, outcome.truncated))
        if self._resets_at_once:
            self._take_finals(ended, outcome, infos)
        else:
            self._reset_at_once(ended, outcome)
        return outcome

    def _infos_of_rollout(
        self, infos: dict[str, Any], outcome: Outcome, actions: Sequence[Any]
    ) -> BatchedInfos:
        # Finals are read elsewhere, and may have any structure.
        said = {name: value for name, value in infos.items() if name not in _FINALS}
        try:
            tree = with_slots(as_tree(said, len(self._slots)), self._numbers)
        except (ValueError, IndexError) as error:
            raise UserCodeError(None, actions) from error
        if not outcome.none_ended and not self._resets_at_once:
            has_ended = np.logical_or(outcome.terminated, outcome.truncated)
            tree = as_if_reset_at_once(tree, has_ended)
        return BatchedInfos(self._numbers, tree)

    def _take_finals(self, ended: Array, outcome: Outcome, infos: dict[str, Any]) -> None:
        finals = infos.get("final_obs")
        if finals is None:
            raise UserCodeError(None) from ValueError(
                f"{type(self._env.unwrapped).__name__} resets within the step but gives no "
                "info['final_obs'] for ended episodes: add it, or declare autoreset_mode "
                "NEXT_STEP if it resets one step later"
            )
        outcome.ends = BatchedEnds(
            ended, [_last_values(finals, leaf, ended) for leaf in self._leaves]
        )

    def _reset_at_once(self, ended: Array, outcome: Outcome) -> None:
        """Reset now: the VectorEnv would do so in the next step, whose row is not a transition."""
        columns = [leaf.of(outcome.observations) for leaf in self._leaves]
        space = self._env.single_observation_space
        outcome.ends = BatchedEnds(ended, [np.asarray(column)[ended] for column in columns])
        try:
            first, _ = self._reset_some(ended, (), None)
        except Exception as error:
            raise UserCodeError(None) from error
        targets = columns if outcome.landed else [np.array(column) for column in columns]
        for leaf, target in zip(self._leaves, targets, strict=True):
            target[ended] = leaf.of(first)
        outcome.observations = join_leaves(space, targets)

    # Everything else.

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method, or read an attribute, of every env."""
        try:
            return call_every_env(self._env, name, args, kwargs)
        except Exception as error:
            raise UserCodeError(None) from error

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        try:
            set_attr_of_every_env(self._env, name, values)
        except Exception as error:
            raise UserCodeError(None) from error

    def close(self) -> None:
        """Close the VectorEnv."""
        self._env.close()


def with_slots(tree: Tree, numbers: Array) -> Tree:
    """Replace a VectorEnv's ``env_id``, which counts its own envs, by slots."""
    for name, value in tree.items():
        if isinstance(value, dict):
            with_slots(value, numbers)
        elif name == "env_id" and value.dtype.kind in "iu" and _are_rows(value, len(numbers)):
            tree[name] = numbers.astype(value.dtype)[value]
    return tree


def _are_rows(numbers: Array, count: int) -> bool:
    """Whether these can be numbers of envs; others mean something else, and stay as they are."""
    if not numbers.size:
        return False
    return bool(numbers.min() >= 0) and bool(numbers.max() < count)


def _land(outcome: Outcome, landing: Landing) -> Outcome:
    """Copy an outcome to where it belongs; its rewards stay as they came."""
    fill(landing.observations, outcome.observations, landing.leaf)
    fill_flags(landing.rewards, landing.terminated, landing.truncated, outcome)
    outcome.observations, outcome.landed = landing.observations, True
    return outcome


def _finals_by_row(infos: dict[str, Any]) -> dict[str, Any]:
    """Final observations of a Tuple space, one per env, as Gymnasium's own VectorEnvs have them."""
    finals, mask = infos.get("final_obs"), infos.get("_final_obs")
    if not isinstance(finals, tuple) or mask is None:
        return infos
    by_row = np.full(len(mask), None, object)
    for row in np.flatnonzero(mask).tolist():
        by_row[row] = _observation_of(finals, row)
    return {**infos, "final_obs": by_row}


def _last_values(finals: Any, leaf: Leaf, rows: Array) -> Any:
    """One leaf of the final observations in these rows, batched or one object per env."""
    if not isinstance(finals, np.ndarray) or finals.dtype != object:
        values = leaf.of(finals)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return values[rows]
    return [leaf.of(_observation_of(finals, row)) for row in rows.tolist()]


def _observation_of(batch: Any, row: int) -> Any:
    """One env's part of a batch of observations, which may be nested in dicts and tuples."""
    if isinstance(batch, dict):
        return {key: _observation_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_observation_of(value, row) for value in batch)
    observation = batch[row]
    return observation.copy() if isinstance(observation, np.ndarray) else observation


def _seed_argument(seeds: Sequence[int | None]) -> Any:
    """One int if that means the same, since VectorEnvs need not understand lists."""
    if all(seed is None for seed in seeds):
        return None
    first = seeds[0]
    if first is not None and list(seeds) == list(range(first, first + len(seeds))):
        return first
    return list(seeds)
