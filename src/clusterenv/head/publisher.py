"""The newest policy: published by the learner's thread, pulled through the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from clusterenv.policies.base import Policy
from clusterenv.policies.copy import Snapshot, layout_of
from clusterenv.wire.codec import Buffer
from clusterenv.wire.messages import Message, Pull, TakePolicy, Weights
from clusterenv.wire.pickling import pickle_for_workers


@dataclass(frozen=True)
class _Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    take_policy: TakePolicy
    weights: Weights
    vector: bytes


class Publisher:
    """Holds what was published last. Publishing never waits for a pull."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: _Publication | None = None
        self._policy: Policy | None = None

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return 0 if self._newest is None else self._newest.weights.version

    def publish(self, policy: Policy, seed: int) -> int:
        """Make the weights of ``policy`` available; bit-equal weights are no new version."""
        with self._lock:
            newest = self._newest
            weights = policy.weights()
            if newest is None or policy is not self._policy:
                policy_id = 1 if newest is None else newest.take_policy.policy_id + 1
                layout = msgspec.msgpack.encode(layout_of(weights))
                take = TakePolicy(policy_id, pickle_for_workers(policy), layout, seed)
            else:
                take = newest.take_policy
            snapshot = Snapshot.take(self.version + 1, weights)
            if newest is None or newest.take_policy is not take or newest.vector != snapshot.vector:
                message = Weights(take.policy_id, snapshot.version, snapshot.checksum)
                self._newest = _Publication(take, message, snapshot.vector)
            self._policy = policy
        return self.version

    def answer(self, pull: Pull) -> Sequence[tuple[Message, Sequence[Buffer]]]:
        """What a worker that pulls is sent: the newest weights, and the policy if it is new."""
        newest = self._newest
        if newest is None:
            return []
        weights = (newest.weights, [newest.vector])
        if pull.policy_id == newest.take_policy.policy_id:
            return [weights]
        return [(newest.take_policy, ()), weights]
