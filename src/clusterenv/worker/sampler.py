"""Policy × envs → fragment: the hot path of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution
from clusterenv.memory.part_times import ENV, INFERENCE, SERIALISE, PartTimes
from clusterenv.policies import recurrent
from clusterenv.policies.base import Acted, Policy
from clusterenv.randomness import SlotRandom
from clusterenv.worker.rows import Landing, Outcome, fill_flags
from clusterenv.worker.stepper import Stepper, UserCodeError
from clusterenv.worker.translator import Translator


@dataclass(frozen=True)
class _Final:
    """An episode's end within a fragment."""

    step: int
    slot: int
    observation: Any
    state: Any


class Sampler:
    """Lets a policy act in the envs of a worker, and writes down what happens."""

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

    def start(self, seed: int) -> None:
        """The envs were reset: new episodes everywhere, random numbers from the beginning."""
        self._rng = SlotRandom(seed, self._slots)
        self._step = 0
        self._state = None
        self._returns[:], self._lengths[:] = 0.0, 0

    def act(self, policy: Policy, current: Outcome) -> Acted:
        """One action for each slot, from where the envs are."""
        self._times.begin(INFERENCE)
        return self._act(policy, self._translator.observe(current, len(self._slots)))

    def forget(self, ended: Sequence[int]) -> None:
        """The episodes of these columns have ended."""
        self._state = recurrent.forget_rows(self._state, ended)

    def collect(
        self, policy: Policy, current: Outcome, num_steps: int
    ) -> tuple[dict[str, Array], Outcome]:
        """``num_steps`` steps from ``current`` on: named arrays, and where the envs are then."""
        translator, count, times = self._translator, len(self._slots), self._times
        is_timed, lands = times.is_on, Landing.is_possible(translator.leaves)
        times.begin(SERIALISE)
        observations = translator.empty(num_steps + 1, count)
        rewards = np.empty((num_steps, count))
        terminated, truncated = np.empty((2, num_steps, count), np.bool_)
        first_state, acts, finals = self._state, [], []
        translator.put([array[0] for array in observations], current)
        for t in range(num_steps):
            if is_timed:
                times.begin(INFERENCE)
            # Copies: a policy may write to what it is given, and the record must not change.
            acted = self._act(policy, translator.join([array[t].copy() for array in observations]))
            if is_timed:
                times.begin(SERIALISE)
            actions, targets = translator.rows_of(acted.actions), [a[t + 1] for a in observations]
            columns, landing = (rewards[t], terminated[t], truncated[t]), None
            if lands:
                landing = Landing(targets[0], *columns, translator.leaves[0])
            if is_timed:
                times.begin(ENV)
            current = self._stepper.step_for_rollout(self._slots, actions, landing)
            if is_timed:
                times.begin(SERIALISE)
            if not current.landed:
                translator.put(targets, current)
                fill_flags(*columns, current)
            self._made_progress()
            acts.append(acted)
            if not current.none_ended:
                finals += self._ends(t, current)
        arrays = {f"observations/{index}": array for index, array in enumerate(observations)}
        arrays |= {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        arrays |= self._stack_acts(acts)
        arrays |= recurrent.named_arrays(first_state, acts[0].state)
        arrays |= self._table(finals, rewards)
        if "value" in acts[0].outputs:
            last = translator.join([array[-1] for array in observations])
            times.begin(INFERENCE)
            arrays |= self._values(policy, last, finals)
            times.begin(SERIALISE)
        return arrays, current

    def _act(self, policy: Policy, observations: Any) -> Acted:
        self._rng.go_to(self._step)
        try:
            acted = policy.act(observations, self._state, self._rng)
        except Exception as error:
            raise UserCodeError(None) from error
        if policy is not self._checked:
            self._translator.check(acted.actions, len(self._slots))
            self._checked = policy
        self._step += 1
        self._state = acted.state
        return acted

    def _ends(self, t: int, outcome: Outcome) -> list[_Final]:
        ends = [
            _Final(t, slot, info["final_obs"], recurrent.row_of(self._state, self._column[slot]))
            for slot, info in outcome.infos
            # An env may have an info of its own that is called so.
            if "final_obs" in info and self._has_ended(outcome, slot)
        ]
        if ends:
            self.forget([self._column[end.slot] for end in ends])
        return ends

    def _has_ended(self, outcome: Outcome, slot: int) -> bool:
        column = self._column[slot]
        return bool(outcome.terminated[column] or outcome.truncated[column])

    def _stack_acts(self, acts: list[Acted]) -> dict[str, Array]:
        arrays = {
            f"actions/{index}": _stack([leaf.of(acted.actions) for acted in acts])
            for index, leaf in enumerate(self._translator.action_leaves)
        }
        self._translator.check_range(list(arrays.values()))
        for name in acts[0].outputs:
            arrays[f"outputs/{name}"] = _stack([acted.outputs[name] for acted in acts])
        return arrays | _stack_distributions([acted.distribution for acted in acts])

    def _table(self, finals: list[_Final], rewards: Array) -> dict[str, Array]:
        """A row per episode that ended."""
        returns, lengths = self._episodes(finals, rewards)
        columns = self._translator.stack([final.observation for final in finals])
        return {
            "finals/steps": np.array([final.step for final in finals], np.int64),
            "finals/slots": np.array([final.slot for final in finals], np.int64),
            "finals/returns": np.array(returns, np.float64),
            "finals/lengths": np.array(lengths, np.int64),
            **{f"finals/{index}": column for index, column in enumerate(columns)},
        }

    def _episodes(self, finals: list[_Final], rewards: Array) -> tuple[list[float], list[int]]:
        """Return and length of each episode that ended; the rest is carried over."""
        returns, lengths = [], []
        begun = np.zeros(len(self._slots), np.int64)
        for final in finals:
            column = self._column[final.slot]
            part = rewards[begun[column] : final.step + 1, column]
            returns.append(float(self._returns[column] + part.sum()))
            lengths.append(int(self._lengths[column] + len(part)))
            self._returns[column], self._lengths[column] = 0.0, 0
            begun[column] = final.step + 1
        for column, start in enumerate(begun):
            self._returns[column] += rewards[start:, column].sum()
        self._lengths += len(rewards) - begun
        return returns, lengths

    def _values(self, policy: Policy, last: Any, finals: list[_Final]) -> dict[str, Array]:
        """The values of the last observations, for what the fragment cuts off."""
        values = policy.act(last, self._state, None).outputs["value"]
        if not finals:
            return {"last_values": values, "finals/values": values[:0]}
        ends = self._translator.join(self._translator.stack([f.observation for f in finals]))
        states = recurrent.stack_rows([final.state for final in finals])
        ended = policy.act(ends, states, None).outputs["value"]
        return {"last_values": values, "finals/values": ended}


def _stack_distributions(distributions: Sequence[Distribution | None]) -> dict[str, Array]:
    """What the actions were drawn from, [T, n, …]."""
    parameters = [{} if one is None else one.arrays() for one in distributions]
    return {
        f"distribution/{name}": _stack([arrays[name] for arrays in parameters])
        for name in parameters[0]
    }


def _stack(steps: Sequence[Array]) -> Array:
    """One array [T, n, …]. As ``np.stack``, which costs several times as much for small arrays."""
    return np.concatenate(steps).reshape(len(steps), *np.shape(steps[0]))
