"""Plays whole episodes in envs of their own, so that training is not disturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clusterenv.memory.part_times import ENV, INFERENCE, OTHER, PartTimes
from clusterenv.policies import recurrent
from clusterenv.policies.base import Policy, acts_on_device
from clusterenv.randomness import SlotRandom
from clusterenv.worker.not_a_number import refuse_nan_actions, refuse_nan_outputs
from clusterenv.worker.sampler import always
from clusterenv.worker.stepper import Stepper, UserCodeError
from clusterenv.worker.translator import Translator

Episode = tuple[float, int]


class Evaluator:
    """Plays a fixed number of episodes per slot: the first to finish would favour short ones."""

    def __init__(
        self,
        stepper: Stepper,
        slots: Sequence[int],
        translator: Translator,
        made_progress: Callable[[], None],
        times: PartTimes,
    ) -> None:
        self._stepper, self._slots, self._translator = stepper, tuple(slots), translator
        self._made_progress, self._times = made_progress, times

    def run(
        self,
        policy: Policy,
        episodes: Sequence[int],
        seed: int,
        deterministic: bool,
        is_wanted: Callable[[], bool] = always,
    ) -> list[list[Episode]] | None:
        """(return, length) of ``episodes[i]`` episodes of the i-th slot; None as soon as they are
        no longer wanted."""
        count = len(self._slots)
        results: list[list[Episode]] = [[] for _ in self._slots]
        rng, times = SlotRandom(seed, self._slots), self._times
        times.begin(ENV)
        current = self._stepper.reset(self._slots, [seed + slot for slot in self._slots], None)
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        state: Any = None
        step = 0
        while any(len(done) < wanted for done, wanted in zip(results, episodes, strict=True)):
            rng.go_to(step)
            step += 1
            times.begin(INFERENCE)
            observations = self._translator.observe(current, count, acts_on_device(policy))
            try:
                acted = policy.act(observations, state, None if deterministic else rng)
            except Exception as error:
                raise UserCodeError(None, by_policy=True) from error
            refuse_nan_actions(acted, self._translator.real_actions, self._slots)
            if "log_prob" in acted.outputs:
                refuse_nan_outputs("log_prob", acted.outputs["log_prob"], self._slots)
            actions = self._translator.rows_of(acted.actions)
            times.begin(ENV)
            current = self._stepper.step_for_rollout(self._slots, actions)
            times.begin(OTHER)
            self._made_progress()
            returns += np.asarray(current.rewards, np.float64)
            lengths += 1
            ended = np.flatnonzero(np.logical_or(current.terminated, current.truncated)).tolist()
            for row in ended:
                if len(results[row]) < episodes[row]:
                    results[row].append((float(returns[row]), int(lengths[row])))
            returns[ended], lengths[ended] = 0.0, 0
            state = recurrent.forget_rows(acted.state, ended)
            if not is_wanted():
                return None
        return results

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()
