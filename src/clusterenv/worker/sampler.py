"""Lets a policy act in envs and makes fragments: the hot path of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.memory.part_times import ENV, INFERENCE, SERIALISE, PartTimes
from clusterenv.policies import recurrent
from clusterenv.policies.base import Acted, Policy, acts_on_device
from clusterenv.randomness import SlotRandom
from clusterenv.worker.episode_ends import EpisodeEnds
from clusterenv.worker.info_record import InfoRecord
from clusterenv.worker.not_a_number import LOOKED_AT, refuse_nan_actions, refuse_nan_outputs
from clusterenv.worker.recording import Recording
from clusterenv.worker.stepper import Stepper, UserCodeError
from clusterenv.worker.translator import Translator


def always() -> bool:
    """Keep going: nobody gives up on the request."""
    return True


class Sampler:
    """Lets a policy act in the envs of a worker, and records what happens."""

    def __init__(
        self,
        stepper: Stepper,
        slots: Sequence[int],
        translator: Translator,
        made_progress: Callable[[], None],
        times: PartTimes,
    ) -> None:
        self._stepper, self._slots, self._translator = stepper, slots, translator
        self._made_progress, self._times = made_progress, times
        self._column = {slot: column for column, slot in enumerate(slots)}
        self._rng = SlotRandom(0, slots)
        self._step = 0
        self._checked: Policy | None = None
        self._state: Any = None
        self._returns, self._lengths = np.zeros(len(slots)), np.zeros(len(slots), np.int64)

    def start(self, slots: Sequence[int], seed: int) -> None:
        """Start new episodes in these slots, with random numbers from the beginning.

        If other slots go on, so do the random numbers, unless the seed is a new one.
        """
        columns = [self._column[slot] for slot in slots]
        self._returns[columns], self._lengths[columns] = 0.0, 0
        are_all = len(columns) == len(self._slots)
        self._state = None if are_all else recurrent.forget_rows(self._state, columns)
        if are_all or seed != self._rng.seed:
            self._rng, self._step = SlotRandom(seed, self._slots), 0

    def act(self, policy: Policy, newest: list[Array], slots: Sequence[int]) -> Acted:
        """One action for each of ``slots``, whose observations are ``newest``."""
        self._times.begin(INFERENCE)
        observations = self._translator.join([leaf.copy() for leaf in newest])
        if len(slots) == len(self._slots):
            acted = self._act(policy, observations)
        else:
            acted = self._act_for_some(policy, observations, slots)
        for name in [name for name in LOOKED_AT if name in acted.outputs]:
            refuse_nan_outputs(name, acted.outputs[name], slots)
        return acted

    def forget(self, slots: Sequence[int]) -> None:
        """Forget the recurrent state of these slots, whose episodes have ended."""
        columns = [self._column[slot] for slot in slots]
        self._state = recurrent.forget_rows(self._state, columns)

    def forget_all(self) -> None:
        """Forget all recurrent state: another policy acts from now on."""
        self._state = None

    def collect(
        self,
        policy: Policy,
        newest: list[Array],
        num_steps: int,
        infos: InfoRecord | None = None,
        is_wanted: Callable[[], bool] = always,
    ) -> tuple[dict[str, Array] | None, list[Array]]:
        """Take ``num_steps`` steps from ``newest`` on: named arrays, and the last observations.

        Infos are recorded too, if there is a place for them. As soon as the fragment is no longer
        wanted, returns None, and the observations after the last step.
        """
        times, on_device, device_rows = self._times, acts_on_device(policy), None
        times.begin(SERIALISE)
        recording = Recording(self._translator, self._column, newest, num_steps)
        first_state = self._state
        for t in range(num_steps):
            times.begin(INFERENCE)
            acted = self._act(policy, recording.observed(t) if device_rows is None else device_rows)
            times.begin(SERIALISE)
            actions, landing = self._translator.rows_of(acted.actions), recording.landing(t)
            times.begin(ENV)
            outcome = self._stepper.step_for_rollout(self._slots, actions, landing)
            device_rows = outcome.on_device if on_device else None
            times.begin(SERIALISE)
            if ended := recording.add(t, acted, outcome):
                self._state = recurrent.forget_rows(self._state, ended)
            self._made_progress()
            if infos is not None and outcome.infos:
                infos.add(t, outcome)
            if not is_wanted():
                # Episodes that go on keep their returns so far.
                recording.add_up(self._returns, self._lengths)
                return None, recording.rows(t + 1)
        arrays = recording.arrays(first_state, self._returns, self._lengths)
        if infos is not None:
            arrays |= infos.arrays(num_steps)
        last = recording.rows(num_steps)
        if "outputs/value" in arrays:
            arrays |= self._last_values(policy, self._translator.join(last), recording.ends)
        return arrays, last

    def _act(self, policy: Policy, observations: Any) -> Acted:
        acted = self._ask(policy, observations, self._state, self._rng, self._slots)
        self._state = acted.state
        return acted

    def _act_for_some(self, policy: Policy, observations: Any, slots: Sequence[int]) -> Acted:
        """Act in some slots only: the others were lost, or start over while these step."""
        columns = [self._column[slot] for slot in slots]
        state = recurrent.rows_of(self._state, columns)
        rng = SlotRandom(self._rng.seed, slots)
        acted = self._ask(policy, observations, state, rng, slots)
        self._state = recurrent.put_rows(self._state, columns, acted.state, len(self._slots))
        return acted

    def _ask(
        self, policy: Policy, observations: Any, state: Any, rng: SlotRandom, slots: Sequence[int]
    ) -> Acted:
        rng.go_to(self._step)
        try:
            acted = policy.act(observations, state, rng)
        except Exception as error:
            raise UserCodeError(None, by_policy=True) from error
        if policy is not self._checked:
            self._translator.check(acted.actions, len(slots))
            self._checked = policy
        refuse_nan_actions(acted, self._translator.real_actions, slots)
        self._step += 1
        return acted

    def _last_values(self, policy: Policy, last: Any, ends: EpisodeEnds) -> dict[str, Array]:
        """The values of the last observations, where the fragment cuts episodes off."""
        self._times.begin(INFERENCE)
        values = policy.act(last, self._state, None).outputs["value"]
        refuse_nan_outputs("value", values, self._slots)
        ended = values[:0]
        if ends:
            # A copy: a policy may write to its input.
            observations = self._translator.join([array.copy() for array in ends.observations])
            ended = policy.act(observations, ends.states, None).outputs["value"]
            refuse_nan_outputs("value", ended, [self._slots[column] for column in ends.columns])
        self._times.begin(SERIALISE)
        return {"last_values": values, "finals/values": ended}
