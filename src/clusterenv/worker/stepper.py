"""Steps envs with actions: the hot path of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.worker.rows import Landing, Outcome

Notes = Any  # something with item assignment: a shared memoryview, or a list
Ended = dict[int, tuple[Any, dict[str, Any]]]
"""The rows whose episodes have ended, with the last observation and info of each."""


class UserCodeError(Exception):
    """User code raised; the cause is its own exception."""

    def __init__(self, slot: int | None, action: Any = None, *, by_policy: bool = False) -> None:
        super().__init__(slot)
        self.slot, self.action, self.by_policy = slot, action, by_policy


class Stepper(Protocol):
    """Drives a worker's envs."""

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots."""

    def step(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step these slots, one action each; the results may go to ``landing``."""

    def step_for_rollout(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step these slots; in any autoreset mode, the end of an episode resets at once."""

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method, or read an attribute, of every env."""

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""

    def close(self) -> None:
        """Close the envs."""


class EnvStepper:
    """Steps single envs one after the other.

    ``notes[0]`` always holds (as slot + 1) the slot whose env is running, so that the head can
    name the slot that killed a worker.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        slots: Sequence[int],
        autoreset_mode: AutoresetMode,
        notes: Notes,
    ) -> None:
        self._envs = dict(zip(slots, envs, strict=True))
        self._mode = autoreset_mode
        self._notes = notes
        # What each slot does with its next action: step, or reset if its episode is over.
        self._next: dict[int, Callable[[Any], Any]] = {
            slot: env.step for slot, env in self._envs.items()
        }

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots."""
        observations, infos = [], []
        try:
            for slot, seed in zip(slots, seeds, strict=True):
                self._notes[0] = slot + 1
                observation, info = self._envs[slot].reset(seed=seed, options=options)
                self._next[slot] = self._envs[slot].step
                observations.append(observation)
                if info:
                    infos.append((slot, info))
        except Exception as error:
            raise UserCodeError(self._notes[0] - 1) from error
        zeros, no = [0.0] * len(slots), [False] * len(slots)
        return Outcome(observations, zeros, no, no, infos)

    def step(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step these slots; what happens at an episode's end depends on the autoreset mode."""
        return self._step(slots, actions, self._mode, landing)

    def step_for_rollout(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing | None = None
    ) -> Outcome:
        """Step these slots; in any autoreset mode, the end of an episode resets at once."""
        return self._step(slots, actions, AutoresetMode.SAME_STEP, landing)

    def _step(
        self,
        slots: Sequence[int],
        actions: Sequence[Any],
        mode: AutoresetMode,
        landing: Landing | None,
    ) -> Outcome:
        if landing is None:
            outcome, ended = self._run(slots, actions)
        else:
            outcome, ended = self._run_and_land(slots, actions, landing)
        outcome.none_ended = not ended
        if not ended:
            return outcome
        if mode is AutoresetMode.SAME_STEP:
            self._reset_at_once(slots, ended, landing, outcome)
        else:
            for row in ended:
                self._next[slots[row]] = self._after_the_end(slots[row])
        return outcome

    def _run(self, slots: Sequence[int], actions: Sequence[Any]) -> tuple[Outcome, Ended]:
        """Step the envs; returns also which episodes have ended."""
        notes, what_next, action, results = self._notes, self._next, None, []
        try:
            for slot, action in zip(slots, list(actions), strict=True):
                notes[0] = slot + 1
                results.append(what_next[slot](action))
        except Exception as error:
            raise UserCodeError(notes[0] - 1, action) from error
        try:
            observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
            ended = {row: (observations[row], infos[row]) for row in _ended(terminated, truncated)}
        except (TypeError, ValueError):
            _blame(slots, actions, results)
            raise
        outcome = Outcome(observations, rewards, terminated, truncated)
        if any(infos):
            outcome.infos = [pair for pair in zip(slots, infos, strict=True) if pair[1]]
        return outcome, ended

    def _run_and_land(
        self, slots: Sequence[int], actions: Sequence[Any], landing: Landing
    ) -> tuple[Outcome, Ended]:
        """Like :meth:`_run`, but everything an env returns goes at once to where it belongs."""
        notes, what_next, action, row = self._notes, self._next, None, 0
        rewards, dtype, shape = landing.rewards, landing.dtype, landing.shape
        infos: list[tuple[int, dict[str, Any]]] = []
        ended: Ended = {}
        landing.terminated.fill(False)
        landing.truncated.fill(False)
        try:
            # Every step of every env goes through these lines: whatever can be done for all of them
            # before or after is done there. (While an env runs, the code that indexes an array
            # leaves the caches.)
            for slot, action, target in zip(slots, list(actions), landing.rows, strict=True):
                notes[0] = slot + 1
                observation, reward, terminated, truncated, info = what_next[slot](action)
                if (
                    type(observation) is np.ndarray
                    and observation.dtype is dtype
                    and observation.shape == shape
                ):
                    target[...] = observation
                else:
                    landing.put(row, observation)
                rewards[row] = reward
                if terminated or truncated:
                    landing.terminated[row], landing.truncated[row] = terminated, truncated
                    ended[row] = observation, info
                if info:
                    infos.append((slot, info))
                row += 1
        except Exception as error:
            raise UserCodeError(notes[0] - 1, action) from error
        landing.outcome.infos = infos
        return landing.outcome, ended

    def _after_the_end(self, slot: int) -> Callable[[Any], tuple[Any, float, bool, bool, Any]]:
        """What replaces ``step`` once an episode is over."""

        def reset(_action: Any) -> tuple[Any, float, bool, bool, Any]:
            if self._mode is AutoresetMode.DISABLED:
                raise AssertionError(
                    f"the episode of slot {slot} is over and autoreset_mode is DISABLED: reset it "
                    "first with reset(options={'reset_mask': terminated | truncated})"
                )
            observation, info = self._envs[slot].reset()
            self._next[slot] = self._envs[slot].step
            return observation, 0.0, False, False, info

        return reset

    def _reset_at_once(
        self, slots: Sequence[int], ended: Ended, landing: Landing | None, outcome: Outcome
    ) -> None:
        if landing is None:
            outcome.observations = list(outcome.observations)
        put = outcome.observations.__setitem__ if landing is None else landing.put
        # The head adds a slot's infos in this order: the final ones, then the reset's.
        assert isinstance(outcome.infos, list)
        all_infos, by_slot = [], dict(outcome.infos)
        for row, (observation, info) in ended.items():
            slot = slots[row]
            self._notes[0] = slot + 1
            # Copied: some envs return the same buffer again at reset.
            final = {"final_obs": deepcopy(observation), "final_info": deepcopy(info)}
            all_infos.append((slot, final))
            try:
                first, by_slot[slot] = self._envs[slot].reset()
                put(row, first)
            except Exception as error:
                raise UserCodeError(slot) from error
        outcome.infos = all_infos + [(slot, info) for slot, info in by_slot.items() if info]

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method, or read an attribute, of every env."""
        results = []
        for slot, env in self._envs.items():
            self._notes[0] = slot + 1
            try:
                attribute = env.get_wrapper_attr(name)
                results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
            except Exception as error:
                raise UserCodeError(slot) from error
        return results

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""
        for (slot, env), value in zip(self._envs.items(), values, strict=True):
            try:
                env.set_wrapper_attr(name, value)
            except Exception as error:
                raise UserCodeError(slot) from error

    def close(self) -> None:
        """Close the envs."""
        for env in self._envs.values():
            env.close()


def _ended(terminated: Sequence[Any], truncated: Sequence[Any]) -> list[int]:
    """The rows whose episodes have ended."""
    if not (any(terminated) or any(truncated)):
        return []
    flags = zip(terminated, truncated, strict=True)
    return [row for row, (one, other) in enumerate(flags) if one or other]


def _blame(slots: Sequence[int], actions: Sequence[Any], results: Sequence[Any]) -> None:
    """Find the env whose result is not a step's, and raise Python's own error for it."""
    for slot, action, result in zip(slots, actions, results, strict=True):
        try:
            _, _, terminated, truncated, _ = result
            bool(terminated or truncated)
        except (TypeError, ValueError) as error:
            raise UserCodeError(slot, action) from error
