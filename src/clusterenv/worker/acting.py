"""Everything that a worker does with a policy: hold a copy, pull, act, collect, evaluate."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array, Buffer
from clusterenv.policies.copy import PolicyCopy
from clusterenv.sync import EVALUATION, News, SyncRule
from clusterenv.wire.channel import Channel
from clusterenv.wire.messages import (
    Announce,
    Cancel,
    Measured,
    Message,
    Pull,
    Pulled,
    TakePolicy,
    Weights,
    WeightsNearby,
)
from clusterenv.wire.shelf import WORTH_SHARING_BYTES, Shelf, read_shelf
from clusterenv.worker.evaluator import Evaluator
from clusterenv.worker.rows import Outcome
from clusterenv.worker.sampler import Sampler
from clusterenv.worker.stepper import Stepper
from clusterenv.worker.translator import Translator

_POLL_S = 1.0
# How long the neighbour who fetches for all may take.
_NEIGHBOUR_S = 3.0


@dataclass(frozen=True)
class Workplace:
    """What acting needs to know of the worker around it."""

    channel: Channel
    backlog: deque[tuple[Message, list[Buffer]]]
    """Messages that arrived while the worker waited for another."""
    slots: tuple[int, ...]
    stepper: Stepper
    observation_space: Space[Any]
    action_space: Space[Any]
    sync_rule: SyncRule
    build_more_envs: Callable[[], Stepper]
    made_progress: Callable[[], None]
    """To be called now and then within a long request, which would else count as hung."""


class Acting:
    """The policy side of a worker."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._policy_id = 0
        self._copy: PolicyCopy | None = None
        self._spare: PolicyCopy | None = None
        self._pulls_for_evaluation = False
        self._newest = 0
        self._measured: Measured | None = None
        self._drift = 0.0
        self._pulled_at_s, self._pulled_bytes = time.monotonic(), 0
        self._shelf, self._shelved, self._neighbour_failed = Shelf(), -1, False
        self._cancelled_up_to = 0
        self._sampler: Sampler | None = None
        self._seed = 0
        self._evaluator: Evaluator | None = None

    @cached_property
    def _translator(self) -> Translator:
        # Not earlier: envs with other spaces can be stepped, only not by a policy.
        return Translator(self._place.observation_space, self._place.action_space)

    def hear(self, message: Message, frames: list[Buffer]) -> bool:
        """Take a message about policies; False if it is about something else."""
        match message:
            case Announce(newest=newest, measured=measured):
                self._learn(newest, measured)
            case Cancel(up_to_request=request):
                self._cancelled_up_to = request
            case TakePolicy():
                self._take_policy(message)
            case Weights():
                if (awaited := self._awaits(message)) is not None:
                    vector = awaited.load(message, frames[0])
                    self._pulled_bytes = len(frames[0])
                    big = len(vector) >= WORTH_SHARING_BYTES
                    self._shelved = self._shelf.put(vector) if big else -1
            case WeightsNearby():
                if (awaited := self._awaits(message)) is not None:
                    vector = read_shelf(message.pid, message.fd, awaited.num_bytes)
                    self._neighbour_failed = not awaited.load_vector(message, vector)
                    self._pulled_bytes = 0
            case _:
                return False
        return True

    def _awaits(self, message: Weights | WeightsNearby) -> PolicyCopy | None:
        """The copy that these weights are for.

        None for a late answer: for another policy, or a second one to a pull that was repeated.
        """
        copy = self._spare if self._pulls_for_evaluation else self._copy
        if copy is None or message.policy_id != self._policy_id:
            return None
        return copy if message.version > copy.version else None

    def _take_policy(self, message: TakePolicy) -> None:
        place, translator = self._place, self._translator
        # Nothing changes before all this has worked: else the old policy would act as the new one.
        copies = [PolicyCopy(pickle.loads(message.policy), message.layout) for _ in range(2)]
        self._policy_id = message.policy_id
        self._copy, self._spare = copies
        if self._sampler is None:
            self._sampler = Sampler(place.stepper, place.slots, translator, place.made_progress)
            self._sampler.start(self._seed)

    def episodes_restarted(self, run_seed: int) -> None:
        """All envs of the worker were reset."""
        self._seed = run_seed
        if self._sampler is not None:
            self._sampler.start(self._seed)

    def _learn(self, newest: int, measured: Measured | None) -> None:
        """What the head says goes for its newest version, unless we know of a newer one."""
        if newest >= self._newest:
            self._newest = newest
            if measured is not None and measured != self._measured:
                self._measured = measured
                self._drift = measured.divergence / max(1, newest - measured.held)

    def act(
        self, current: Outcome, newest: int, measured: Measured | None
    ) -> tuple[Any, dict[str, Any]]:
        """An action for each env, and what ``step(policy)`` says about them in its infos."""
        self._learn(newest, measured)
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

    def collect(
        self, current: Outcome, num_steps: int, newest: int, measured: Measured | None
    ) -> tuple[int, dict[str, Array], Outcome]:
        """A fragment: the version that acted, named arrays, and where the envs are then."""
        self._learn(newest, measured)
        copy, sampler = self._ready()
        arrays, current = sampler.collect(copy.policy, current, num_steps)
        return copy.version, arrays, current

    def is_cancelled(self, request: int) -> bool:
        """Whether the head has lost interest in ``request`` by now."""
        self._listen()
        return request <= self._cancelled_up_to

    def evaluate(
        self, episodes: tuple[int, ...], seed: int, deterministic: bool, newest: int
    ) -> list[Any]:
        """Returns and lengths of so many episodes per slot, played in envs of their own."""
        self._newest = max(self._newest, newest)
        if self._spare is None or self._spare.version < self._newest:
            self._pulls_for_evaluation = True
            self._pull(EVALUATION, lambda: self._spare)
            self._pulls_for_evaluation = False
        assert self._spare is not None
        place = self._place
        if self._evaluator is None:
            self._evaluator = Evaluator(
                place.build_more_envs(), place.slots, self._translator, place.made_progress
            )
        return self._evaluator.run(self._spare.policy, episodes, seed, deterministic)

    def close(self) -> None:
        """Close the envs that were built for evaluation."""
        if self._evaluator is not None:
            self._evaluator.close()

    def _ready(self) -> tuple[PolicyCopy, Sampler]:
        """The policy copy to act with, after pulling what the sync rule demands."""
        self._listen()
        held = 0 if self._copy is None else self._copy.version
        cause = self._place.sync_rule.cause_to_pull(self._news(held))
        if cause is not None:
            self._pull(cause, lambda: self._copy)
        if self._copy is None or self._sampler is None or self._copy.version == 0:
            raise RuntimeError("no policy was published, or the sync rule never pulls one")
        return self._copy, self._sampler

    def _news(self, held: int) -> News:
        news = News(
            held,
            self._newest,
            time_s=time.monotonic(),
            pulled_at_s=self._pulled_at_s,
            pulled_bytes=self._pulled_bytes,
            first_slot=self._place.slots[0],
        )
        measured = self._measured
        if measured is None:
            return news
        if measured.held != held:
            # Nothing that these weights did has come back to the head yet: as in a stream, where
            # the next fragment begins before the last one is looked at. Go by how fast it drifted.
            return replace(news, divergence=self._drift * news.lag)
        return replace(
            news,
            divergence=measured.divergence,
            standard_error=measured.standard_error,
            effective_sample_size=measured.effective_sample_size,
        )

    def _listen(self) -> None:
        """Hear what is there already; keep what is not about policies for later."""
        while (received := self._place.channel.recv(0.0)) is not None:
            if not self.hear(*received):
                self._place.backlog.append(received)

    def _pull(self, cause: str, wanted: Callable[[], PolicyCopy | None]) -> None:
        copy, asked_at_s = wanted(), time.monotonic()
        held = 0 if copy is None else copy.version
        threshold = self._place.sync_rule.threshold
        self._shelved, self._neighbour_failed, asked_directly = -1, False, False
        self._place.channel.send(Pull(self._policy_id, held, cause, threshold))
        while (copy := wanted()) is None or copy.version in (held, 0):
            received = self._place.channel.recv(_POLL_S, spin=False)
            if received is not None and not self.hear(*received):
                self._place.backlog.append(received)
            waits_long = received is None and time.monotonic() - asked_at_s > _NEIGHBOUR_S
            # Once: on a slow line the weights themselves may take longer than that.
            if (self._neighbour_failed or waits_long) and not asked_directly:
                asked_directly = True
                request = Pull(self._policy_id, held, cause, threshold, direct=True)
                self._place.channel.send(request)
        self._newest = max(self._newest, copy.version)
        now_s = time.monotonic()
        if cause != EVALUATION:
            self._pulled_at_s = now_s
        self._place.channel.send(Pulled(copy.version, now_s - asked_at_s, self._shelved))
