"""Lets a policy act in envs and makes fragments: the hot path of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.memory.part_times import ENV, INFERENCE, SERIALISE, PartTimes
from clusterenv.policies import recurrent
from clusterenv.policies.base import Acted, Policy, acts_on_device
from clusterenv.randomness import SlotRandom
from clusterenv.worker.episode_ends import EpisodeEnds
from clusterenv.worker.info_record import InfoRecord
from clusterenv.worker.not_a_number import LOOKED_AT, refuse_nan_actions, refuse_nan_outputs
from clusterenv.worker.rows import Landing, fill_flags
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
        record: InfoRecord | None = None,
        is_wanted: Callable[[], bool] = always,
    ) -> tuple[dict[str, Array] | None, list[Array]]:
        """Take ``num_steps`` steps from ``newest`` on: named arrays, and the last observations.

        Infos go to ``record``, if there is one. As soon as the fragment is no longer wanted,
        returns None, and the observations after the last step.
        """
        translator, count, times = self._translator, len(self._slots), self._times
        is_timed, lands = times.is_on, Landing.is_possible(translator.leaves)
        on_device, device_rows = acts_on_device(policy), None
        times.begin(SERIALISE)
        observations = translator.empty(num_steps + 1, count)
        rewards = np.empty((num_steps, count))
        terminated, truncated = np.empty((2, num_steps, count), np.bool_)
        first_state, acts = self._state, []
        ends = EpisodeEnds(translator, self._column)
        for array, leaf in zip(observations, newest, strict=True):
            array[0] = leaf
        for t in range(num_steps):
            if is_timed:
                times.begin(INFERENCE)
            observed = device_rows
            if observed is None:
                # Copies: a policy may write to its input, and the record must not change.
                observed = translator.join([array[t].copy() for array in observations])
            acted = self._act(policy, observed)
            if is_timed:
                times.begin(SERIALISE)
            actions, targets = translator.rows_of(acted.actions), [a[t + 1] for a in observations]
            columns, landing = (rewards[t], terminated[t], truncated[t]), None
            if lands:
                landing = Landing(targets[0], *columns, translator.leaves[0])
            if is_timed:
                times.begin(ENV)
            current = self._stepper.step_for_rollout(self._slots, actions, landing)
            device_rows = current.on_device if on_device else None
            if is_timed:
                times.begin(SERIALISE)
            if not current.landed:
                translator.put(targets, current)
                fill_flags(*columns, current)
            self._made_progress()
            acts.append(acted)
            if record is not None and current.infos:
                record.add(t, current)
            if not current.none_ended and (ended := ends.add(t, current, self._state)):
                self._state = recurrent.forget_rows(self._state, ended)
            if not is_wanted():
                # Episodes that go on keep their returns so far.
                ends.returns_and_lengths(rewards[: t + 1], self._returns, self._lengths)
                return None, targets
        arrays = {f"observations/{index}": array for index, array in enumerate(observations)}
        arrays |= {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        arrays |= self._stack_acts(acts)
        arrays |= recurrent.named_arrays(first_state, acts[0].state)
        arrays |= self._table(ends, rewards)
        if record is not None:
            arrays |= record.arrays(num_steps)
        if "value" in acts[0].outputs:
            arrays |= self._last_values(policy, observations, ends)
        return arrays, [array[-1] for array in observations]

    def _last_values(
        self, policy: Policy, observations: list[Array], ends: EpisodeEnds
    ) -> dict[str, Array]:
        last = self._translator.join([array[-1] for array in observations])
        self._times.begin(INFERENCE)
        values = self._values(policy, last, ends)
        self._times.begin(SERIALISE)
        return values

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
            raise UserCodeError(None) from error
        if policy is not self._checked:
            self._translator.check(acted.actions, len(slots))
            self._checked = policy
        refuse_nan_actions(acted, self._translator.real_actions, slots)
        self._step += 1
        return acted

    def _stack_acts(self, acts: list[Acted]) -> dict[str, Array]:
        arrays = {
            f"actions/{index}": _stack([leaf.of(acted.actions) for acted in acts])
            for index, leaf in enumerate(self._translator.action_leaves)
        }
        self._translator.check_range(list(arrays.values()))
        for name in acts[0].outputs:
            array = _stack([acted.outputs[name] for acted in acts])
            if name in LOOKED_AT:
                refuse_nan_outputs(name, np.swapaxes(array, 0, 1), self._slots)
            arrays[f"outputs/{name}"] = array
        return arrays | _stack_distributions([acted.distribution for acted in acts])

    def _table(self, ends: EpisodeEnds, rewards: Array) -> dict[str, Array]:
        """One row per ended episode."""
        returns, lengths = ends.returns_and_lengths(rewards, self._returns, self._lengths)
        return {
            "finals/steps": np.array(ends.steps, np.int64),
            "finals/slots": np.array(self._slots, np.int64)[ends.columns],
            "finals/returns": np.array(returns, np.float64),
            "finals/lengths": np.array(lengths, np.int64),
            **{f"finals/{index}": column for index, column in enumerate(ends.observations)},
        }

    def _values(self, policy: Policy, last: Any, ends: EpisodeEnds) -> dict[str, Array]:
        """The values of the last observations, where the fragment cuts episodes off."""
        values = policy.act(last, self._state, None).outputs["value"]
        refuse_nan_outputs("value", values, self._slots)
        if not ends:
            return {"last_values": values, "finals/values": values[:0]}
        # A copy: a policy may write to its input.
        observations = self._translator.join([array.copy() for array in ends.observations])
        ended = policy.act(observations, ends.states, None).outputs["value"]
        refuse_nan_outputs("value", ended, [self._slots[column] for column in ends.columns])
        return {"last_values": values, "finals/values": ended}


def _stack_distributions(distributions: Sequence[Distribution | None]) -> dict[str, Array]:
    """What the actions were drawn from, [T, n, …]."""
    parameters = [{} if one is None else one.arrays() for one in distributions]
    return {
        f"distribution/{name}": _stack([arrays[name] for arrays in parameters])
        for name in parameters[0]
    }


def _stack(steps: Sequence[Array]) -> Array:
    """One array [T, n, …], like ``np.stack``, which costs several times as much for small ones."""
    return np.concatenate(steps).reshape(len(steps), *np.shape(steps[0]))
