"""The weights that a host's workers act with: one copy for all, pulled when the rule says so."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import msgspec

from clusterenv.arrays import Buffer
from clusterenv.host.events import PullWanted
from clusterenv.memory.weights import WeightStore
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import (
    AnyRequest,
    Evaluate,
    Measured,
    Newest,
    PolicyRequest,
    is_ahead,
)
from clusterenv.sync.rules import EVALUATION, FIRST, News, SyncRule


@dataclass(frozen=True)
class PulledWeights:
    """Weights of a policy that a host wanted for ``cause``, and how many bytes moved for them."""

    policy: TakePolicy
    version: int
    vector: Buffer | bytearray
    cause: str
    num_bytes: int


class HostWeights:
    """Knows what the head has and what the workers have, and decides whether to pull.

    It knows much because a sync rule may ask for all of it.
    """

    def __init__(
        self, rule: SyncRule, store: WeightStore, evaluation: WeightStore, first_slot: int
    ) -> None:
        self._rule, self._first_slot = rule, first_slot
        self._store, self._evaluation = store, evaluation
        self.policy: TakePolicy | None = None
        """The policy whose weights are held."""
        self._held, self._held_for_evaluation = 0, 0
        self._newest = Newest(0, 0)
        self._measured: Measured | None = None
        self._drift = 0.0
        self._pulled_at_s, self._pulled_bytes = time.monotonic(), 0
        self.pulls_for = ""
        """The cause of the pull under way, if there is one."""

    @property
    def _policy_id(self) -> int:
        return 0 if self.policy is None else self.policy.policy_id

    def learn(self, newest: Newest) -> None:
        """Take the head's news, unless a newer version is known already."""
        if newest.version < self._newest.version:
            return
        self._newest = newest
        if newest.measured is not None and newest.measured != self._measured:
            self._measured = newest.measured
            lag = max(1, newest.version - newest.measured.held)
            self._drift = newest.measured.divergence / lag

    @property
    def waits_for_policy(self) -> bool:
        """Whether the head has a different policy object than the workers."""
        return 0 != self._policy_id != self._newest.policy_id

    def are_of_another(self, policy: TakePolicy) -> bool:
        """Whether the weights held belong to another policy than this one."""
        return 0 != self._policy_id != policy.policy_id

    def wanted_for(self, request: PolicyRequest | None) -> PullWanted | None:
        """The pull needed before ``request`` (None: the next one that comes) can begin."""
        cause = self._cause(request)
        if cause is None:
            return None
        self.pulls_for = cause
        held = self._held_for_evaluation if cause == EVALUATION else self._held
        version = request.newest.version if is_ahead(request) else 0
        return PullWanted(self._policy_id, held, cause, self._rule.threshold, version)

    def _newest_for(self, request: PolicyRequest | None) -> Newest:
        """The news that ``request`` is decided by; for one made ahead, the newest at that time."""
        return request.newest if is_ahead(request) else self._newest

    def stamped(self, message: AnyRequest) -> AnyRequest:
        """``message`` as a worker gets it; one made ahead says which version is to act."""
        if not is_ahead(message):
            return message
        return msgspec.structs.replace(message, newest=Newest(self._policy_id, self._held))

    def _cause(self, request: PolicyRequest | None) -> str | None:
        newest = self._newest_for(request)
        is_new_policy = newest.policy_id != self._policy_id
        if isinstance(request, Evaluate):
            is_behind = self._held_for_evaluation < self._newest.version
            return EVALUATION if is_new_policy or is_behind else None
        if newest.policy_id and (is_new_policy or self._held == 0):
            # A different policy: the rule has no say in whether it may act, but it learns of it.
            self._rule.cause_to_pull(self._news(newest))
            return FIRST
        return self._rule.cause_to_pull(self._news(newest))

    def _news(self, newest: Newest) -> News:
        news = News(
            self._held,
            newest.version,
            time_s=time.monotonic(),
            pulled_at_s=self._pulled_at_s,
            pulled_bytes=self._pulled_bytes,
            first_slot=self._first_slot,
        )
        measured = self._measured
        if measured is None:
            return news
        if measured.held != self._held:
            # Nothing that these weights did has come back to the head yet, as in a stream, where
            # the next fragment begins before the last is read. Extrapolate the drift per version.
            return replace(news, divergence=self._drift * news.lag)
        return replace(
            news,
            divergence=measured.divergence,
            standard_error=measured.standard_error,
            effective_sample_size=measured.effective_sample_size,
        )

    def take(self, pulled: PulledWeights) -> None:
        """Take weights that were wanted; OSError if there is no memory for them."""
        if pulled.cause != self.pulls_for:
            return  # from a pull that was given up
        self.pulls_for = ""
        policy, version = pulled.policy, pulled.version
        is_new = policy.policy_id != self._policy_id
        if is_new:
            self._held = self._held_for_evaluation = 0
        self.policy = policy
        if pulled.cause == EVALUATION:
            self._evaluation.put(policy.policy_id, version, pulled.vector)
            self._held_for_evaluation = version
        else:
            self._store.put(policy.policy_id, version, pulled.vector)
            self._held = version
            self._pulled_at_s, self._pulled_bytes = time.monotonic(), pulled.num_bytes
        if version > self._newest.version:
            self._newest = Newest(policy.policy_id, version, self._newest.measured)
