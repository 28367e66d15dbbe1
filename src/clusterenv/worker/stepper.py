"""Actions → envs: the hot path of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import gymnasium
from gymnasium.vector import AutoresetMode

from clusterenv.worker.rows import Outcome

Notes = Any  # something with item assignment: a shared memoryview, or a list


class UserCodeError(Exception):
    """An env raised. The cause is the env's own exception."""

    def __init__(self, slot: int | None, action: Any = None) -> None:
        super().__init__(slot)
        self.slot, self.action = slot, action


class Stepper(Protocol):
    """Drives a worker's envs."""

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots."""

    def step(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots, one action each."""

    def step_for_rollout(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots; whatever the autoreset mode, an episode's end resets at once."""

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method, or read an attribute, of every env."""

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of every env."""

    def close(self) -> None:
        """Close the envs."""


class EnvStepper:
    """Steps single envs one after the other.

    ``notes[0]`` always says (as slot + 1) whose env is running, so that the head can name the
    slot that killed a worker.
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
        # What each slot does with its next action: step, or reset where an episode is over.
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

    def step(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots; what happens at an episode's end depends on the autoreset mode."""
        return self._step(slots, actions, self._mode)

    def step_for_rollout(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots; whatever the autoreset mode, an episode's end resets at once."""
        return self._step(slots, actions, AutoresetMode.SAME_STEP)

    def _step(self, slots: Sequence[int], actions: Sequence[Any], mode: AutoresetMode) -> Outcome:
        notes, what_next, results = self._notes, self._next, []
        action = None
        try:
            for slot, action in zip(slots, actions, strict=True):
                notes[0] = slot + 1
                results.append(what_next[slot](action))
            observations, rewards, terminations, truncations, infos = zip(*results, strict=True)
        except Exception as error:
            raise UserCodeError(notes[0] - 1, action) from error
        by_slot = []
        if any(infos):
            by_slot = [(slot, info) for slot, info in zip(slots, infos, strict=True) if info]
        none_ended = not (any(terminations) or any(truncations))
        outcome = Outcome(
            observations, rewards, terminations, truncations, by_slot, none_ended=none_ended
        )
        if not none_ended:
            ended = [row for row in range(len(slots)) if terminations[row] or truncations[row]]
            if mode is AutoresetMode.SAME_STEP:
                return self._reset_at_once(slots, ended, outcome, infos)
            for row in ended:
                self._next[slots[row]] = self._after_the_end(slots[row])
        return outcome

    def _after_the_end(self, slot: int) -> Callable[[Any], tuple[Any, float, bool, bool, Any]]:
        """What stands in for ``step`` once an episode is over."""

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
        self, slots: Sequence[int], ended: list[int], outcome: Outcome, infos: Sequence[Any]
    ) -> Outcome:
        observations, all_infos = list(outcome.observations), []
        # The head adds a slot's infos in this order: the final ones, then those of the reset.
        by_slot = dict(outcome.infos)
        for row in ended:
            slot = slots[row]
            self._notes[0] = slot + 1
            # Copied: some envs hand out the same buffer again at reset.
            final = {"final_obs": deepcopy(observations[row]), "final_info": deepcopy(infos[row])}
            all_infos.append((slot, final))
            try:
                observations[row], by_slot[slot] = self._envs[slot].reset()
            except Exception as error:
                raise UserCodeError(slot) from error
        all_infos += [(slot, info) for slot, info in by_slot.items() if info]
        outcome.observations, outcome.infos = observations, all_infos
        return outcome

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
