"""Everything that a worker does with a policy: holds copies, acts, collects, evaluates."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.memory.part_times import IMPORT, OTHER, PULL, PartTimes
from clusterenv.memory.weights import WeightStore
from clusterenv.policies.copy import PolicyCopy
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Evaluate
from clusterenv.worker.evaluator import Evaluator
from clusterenv.worker.info_record import InfoRecord
from clusterenv.worker.rows import Outcome
from clusterenv.worker.sampler import Sampler, always
from clusterenv.worker.stepper import Stepper
from clusterenv.worker.translator import Translator


@dataclass(frozen=True)
class Workplace:
    """What acting needs to know about the worker around it."""

    slots: tuple[int, ...]
    stepper: Stepper
    observation_space: Space[Any]
    action_space: Space[Any]
    weights: WeightStore
    evaluation_weights: WeightStore
    build_more_envs: Callable[[bytes], Stepper]
    """Builds envs from a pickled backend; if it is empty, from the worker's own."""
    made_progress: Callable[[], None]
    """To be called regularly within a long request, which would otherwise count as hung."""
    times: PartTimes


class Acting:
    """The policy side of a worker. Its host decides which weights it uses."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._introduced: TakePolicy | None = None
        self._copy: PolicyCopy | None = None
        self._spare: PolicyCopy | None = None
        self._policy_id = 0
        self._acted_last = 0
        self._sampler: Sampler | None = None
        self._seed = 0
        self._evaluator: Evaluator | None = None
        self._evaluated_in = b""

    @cached_property
    def _translator(self) -> Translator:
        # Not earlier: envs with other spaces can be stepped, just not by a policy.
        return Translator(self._place.observation_space, self._place.action_space)

    def introduce(self, policy: TakePolicy) -> None:
        """Take the policy for the coming requests; it is unpickled at the first of them."""
        self._introduced = policy

    def episodes_restarted(self, slots: tuple[int, ...], run_seed: int) -> None:
        """Note that these slots, all or some of the worker's, were reset."""
        self._seed = run_seed
        if self._sampler is not None:
            self._sampler.start(slots, run_seed)

    def act(self, newest: list[Array], slots: tuple[int, ...]) -> tuple[Any, dict[str, Any]]:
        """An action for each of ``slots``, and what ``step(policy)`` puts into its infos.

        ``newest`` has their observations, an array per leaf.
        """
        copy, sampler = self._ready()
        acted = sampler.act(copy.policy, newest, slots)
        version = np.full(len(slots), copy.version)
        said = {"action": acted.actions, "version": version, **acted.outputs}
        return self._translator.rows_of(acted.actions), said

    def note_ends(self, slots: tuple[int, ...], outcome: Outcome) -> None:
        """Forget the recurrent state of episodes that have ended."""
        ended = np.flatnonzero(np.logical_or(outcome.terminated, outcome.truncated))
        self.forget([slots[row] for row in ended.tolist()])

    def forget(self, slots: list[int]) -> None:
        """Forget the recurrent state of these slots."""
        if slots and self._sampler is not None:
            self._sampler.forget(slots)

    def collect(
        self,
        newest: list[Array],
        num_steps: int,
        record: InfoRecord | None = None,
        is_wanted: Callable[[], bool] = always,
        version: int = 0,
    ) -> tuple[int, dict[str, Array] | None, list[Array]]:
        """Collect a fragment: the version that acted, named arrays (None if they are no longer
        wanted), and the last observations. ``version`` acts if the host has it, else the newest."""
        copy, sampler = self._ready(version)
        arrays, last = sampler.collect(copy.policy, newest, num_steps, record, is_wanted)
        return copy.version, arrays, last

    def evaluate(
        self, message: Evaluate, is_wanted: Callable[[], bool] = always
    ) -> list[Any] | None:
        """Returns and lengths of the wanted episodes per slot, played in envs of their own; None if
        they are no longer wanted."""
        self._take_policy()
        assert self._spare is not None
        self._load(self._spare, self._place.evaluation_weights)
        evaluator = self._evaluator_in(message.backend)
        seed, deterministic = message.seed, message.deterministic
        policy, episodes = self._spare.policy, message.episodes
        return evaluator.run(policy, episodes, seed, deterministic, is_wanted)

    def _evaluator_in(self, backend: bytes) -> Evaluator:
        """An evaluator with envs of this backend, which are kept for the next time."""
        place = self._place
        if self._evaluator is not None and backend != self._evaluated_in:
            self._evaluator.close()
            self._evaluator = None
        if self._evaluator is None:
            envs, self._evaluated_in = place.build_more_envs(backend), backend
            self._evaluator = Evaluator(
                envs, place.slots, self._translator, place.made_progress, place.times
            )
        return self._evaluator

    def close(self) -> None:
        """Close the envs that were built for evaluation."""
        if self._evaluator is not None:
            self._evaluator.close()

    def _ready(self, version: int = 0) -> tuple[PolicyCopy, Sampler]:
        """The policy copy to act with, with the host's weights for it."""
        self._take_policy()
        assert self._copy is not None
        assert self._sampler is not None
        self._load(self._copy, self._place.weights, version)
        if self._acted_last != self._policy_id:
            # The recurrent state is that of another policy.
            self._acted_last = self._policy_id
            self._sampler.forget_all()
        return self._copy, self._sampler

    def _take_policy(self) -> None:
        introduced, place = self._introduced, self._place
        assert introduced is not None, "the host asked for a policy before it sent one"
        if introduced.policy_id == self._policy_id:
            return
        place.times.begin(IMPORT)
        translator = self._translator
        # Nothing changes until all this has worked: else the old policy would act as the new one.
        copies = [PolicyCopy(pickle.loads(introduced.policy), introduced.layout) for _ in range(2)]
        self._policy_id = introduced.policy_id
        self._copy, self._spare = copies
        if self._sampler is None:
            self._sampler = Sampler(
                place.stepper, place.slots, translator, place.made_progress, place.times
            )
            self._sampler.start(place.slots, self._seed)

    def _load(self, copy: PolicyCopy, store: WeightStore, version: int = 0) -> None:
        """Load what the host has put into ``store`` since the last time; or ``version`` of it."""
        times = self._place.times
        times.begin(PULL)
        if not version or version > copy.version:
            newer = store.take(self._policy_id, copy.version, version)
            if newer is not None:
                copy.take(*newer)
        times.begin(OTHER)
        if copy.version == 0:
            # The weights that it was pickled with are not a published version.
            raise RuntimeError("the host has no weights of this policy")
