"""Everything that a worker does with a policy: hold copies, act, collect, evaluate."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.memory.part_times import OTHER, PULL, PartTimes
from clusterenv.memory.weights import WeightStore
from clusterenv.policies.copy import PolicyCopy
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Evaluate
from clusterenv.worker.evaluator import Evaluator
from clusterenv.worker.rows import Outcome
from clusterenv.worker.sampler import Sampler
from clusterenv.worker.stepper import Stepper
from clusterenv.worker.translator import Translator


@dataclass(frozen=True)
class Workplace:
    """What acting needs to know of the worker around it."""

    slots: tuple[int, ...]
    stepper: Stepper
    observation_space: Space[Any]
    action_space: Space[Any]
    weights: WeightStore
    evaluation_weights: WeightStore
    build_more_envs: Callable[[], Stepper]
    made_progress: Callable[[], None]
    """To be called now and then within a long request, which would else count as hung."""
    times: PartTimes


class Acting:
    """The policy side of a worker. Which weights it uses is its host's decision."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._introduced: TakePolicy | None = None
        self._copy: PolicyCopy | None = None
        self._spare: PolicyCopy | None = None
        self._policy_id = 0
        self._sampler: Sampler | None = None
        self._seed = 0
        self._evaluator: Evaluator | None = None

    @cached_property
    def _translator(self) -> Translator:
        # Not earlier: envs with other spaces can be stepped, only not by a policy.
        return Translator(self._place.observation_space, self._place.action_space)

    def introduce(self, policy: TakePolicy) -> None:
        """The policy that requests will be about; it is unpickled when the first one comes."""
        self._introduced = policy

    def episodes_restarted(self, run_seed: int) -> None:
        """All envs of the worker were reset."""
        self._seed = run_seed
        if self._sampler is not None:
            self._sampler.start(self._seed)

    def act(self, current: Outcome) -> tuple[Any, dict[str, Any]]:
        """An action for each env, and what ``step(policy)`` says about them in its infos."""
        copy, sampler = self._ready()
        acted = sampler.act(copy.policy, current)
        version = np.full(len(self._place.slots), copy.version)
        said = {"action": acted.actions, "version": version, **acted.outputs}
        return self._translator.rows_of(acted.actions), said

    def note_ends(self, outcome: Outcome) -> None:
        """Forget the recurrent state of episodes that have ended."""
        if self._sampler is not None:
            ended = np.flatnonzero(np.logical_or(outcome.terminated, outcome.truncated))
            self._sampler.forget(ended.tolist())

    def collect(self, current: Outcome, num_steps: int) -> tuple[int, dict[str, Array], Outcome]:
        """A fragment: the version that acted, named arrays, and where the envs are then."""
        copy, sampler = self._ready()
        arrays, current = sampler.collect(copy.policy, current, num_steps)
        return copy.version, arrays, current

    def evaluate(self, message: Evaluate) -> list[Any]:
        """Returns and lengths of so many episodes per slot, played in envs of their own."""
        self._take_policy()
        assert self._spare is not None
        self._load(self._spare, self._place.evaluation_weights)
        place = self._place
        if self._evaluator is None:
            self._evaluator = Evaluator(
                place.build_more_envs(),
                place.slots,
                self._translator,
                place.made_progress,
                place.times,
            )
        seed, deterministic = message.seed, message.deterministic
        return self._evaluator.run(self._spare.policy, message.episodes, seed, deterministic)

    def close(self) -> None:
        """Close the envs that were built for evaluation."""
        if self._evaluator is not None:
            self._evaluator.close()

    def _ready(self) -> tuple[PolicyCopy, Sampler]:
        """The policy copy to act with, holding what the host has for it."""
        self._take_policy()
        assert self._copy is not None
        assert self._sampler is not None
        self._load(self._copy, self._place.weights)
        return self._copy, self._sampler

    def _take_policy(self) -> None:
        introduced, place = self._introduced, self._place
        assert introduced is not None, "the host asked for a policy before it sent one"
        if introduced.policy_id == self._policy_id:
            return
        translator = self._translator
        # Nothing changes before all this has worked: else the old policy would act as the new one.
        copies = [PolicyCopy(pickle.loads(introduced.policy), introduced.layout) for _ in range(2)]
        self._policy_id = introduced.policy_id
        self._copy, self._spare = copies
        if self._sampler is None:
            self._sampler = Sampler(
                place.stepper, place.slots, translator, place.made_progress, place.times
            )
            self._sampler.start(self._seed)

    def _load(self, copy: PolicyCopy, store: WeightStore) -> None:
        """Change over to what the host has put into ``store`` since."""
        self._place.times.begin(PULL)
        if (newer := store.take(self._policy_id, copy.version)) is not None:
            copy.take(*newer)
        self._place.times.begin(OTHER)
        if copy.version == 0:
            # What it was pickled with is no version that anybody published.
            raise RuntimeError("the host has no weights of this policy")
