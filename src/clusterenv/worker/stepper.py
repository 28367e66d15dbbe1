"""Actions → envs: the hot path of a worker."""

from __future__ import annotations

from collections.abc import Sequence
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
        self._step_of = {slot: env.step for slot, env in self._envs.items()}
        self._ended = dict.fromkeys(slots, False)
        self._notes = notes
        self._run = {
            AutoresetMode.NEXT_STEP: self._step_or_reset,
            AutoresetMode.SAME_STEP: self._step_then_reset,
            AutoresetMode.DISABLED: self._step_only,
        }[autoreset_mode]

    def reset(
        self, slots: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> Outcome:
        """Reset these slots."""
        observations, infos = [], []
        slot = slots[0]
        try:
            for slot, seed in zip(slots, seeds, strict=True):
                self._notes[0] = slot + 1
                observation, info = self._envs[slot].reset(seed=seed, options=options)
                self._ended[slot] = False
                observations.append(observation)
                if info:
                    infos.append((slot, info))
        except Exception as error:
            raise UserCodeError(slot) from error
        zeros, no = [0.0] * len(slots), [False] * len(slots)
        return Outcome(observations, zeros, no, no, infos)

    def step(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots; what happens at an episode's end depends on the autoreset mode."""
        return self._run(slots, actions)

    def _step_or_reset(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        observations, rewards, terminations, truncations, infos = [], [], [], [], []
        ended, step_of, notes = self._ended, self._step_of, self._notes
        slot, action = slots[0], None
        try:
            for slot, action in zip(slots, actions, strict=True):
                notes[0] = slot + 1
                if ended[slot]:
                    observation, info = self._envs[slot].reset()
                    reward: Any = 0.0
                    terminated = truncated = False
                else:
                    observation, reward, terminated, truncated, info = step_of[slot](action)
                ended[slot] = terminated or truncated
                observations.append(observation)
                rewards.append(reward)
                terminations.append(terminated)
                truncations.append(truncated)
                if info:
                    infos.append((slot, info))
        except Exception as error:
            raise UserCodeError(slot, action) from error
        return Outcome(observations, rewards, terminations, truncations, infos)

    def step_for_rollout(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        """Step these slots; whatever the autoreset mode, an episode's end resets at once."""
        return self._step_then_reset(slots, actions)

    def _step_then_reset(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        observations, rewards, terminations, truncations, infos = [], [], [], [], []
        step_of, notes = self._step_of, self._notes
        slot, action = slots[0], None
        try:
            for slot, action in zip(slots, actions, strict=True):
                notes[0] = slot + 1
                observation, reward, terminated, truncated, info = step_of[slot](action)
                if terminated or truncated:
                    # Copied: some envs hand out the same buffer again at reset.
                    final = {"final_obs": deepcopy(observation), "final_info": deepcopy(info)}
                    infos.append((slot, final))
                    observation, info = self._envs[slot].reset()
                observations.append(observation)
                rewards.append(reward)
                terminations.append(terminated)
                truncations.append(truncated)
                if info:
                    infos.append((slot, info))
        except Exception as error:
            raise UserCodeError(slot, action) from error
        return Outcome(observations, rewards, terminations, truncations, infos)

    def _step_only(self, slots: Sequence[int], actions: Sequence[Any]) -> Outcome:
        over = [slot for slot in slots if self._ended[slot]]
        if over:
            raise UserCodeError(over[0]) from AssertionError(
                f"the episodes of slots {over} are over and autoreset_mode is DISABLED: reset "
                "them first with reset(options={'reset_mask': terminated | truncated})"
            )
        return self._step_or_reset(slots, actions)

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
