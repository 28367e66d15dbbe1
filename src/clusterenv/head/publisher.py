"""The newest policy: published by the learner's thread, pulled through the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterenv.ledger import Ledger
from clusterenv.policies.base import Policy
from clusterenv.policies.copy import Layout, Snapshot, encode_layout
from clusterenv.wire.codec import Buffer
from clusterenv.wire.messages import Message, Pull, TakePolicy, Weights
from clusterenv.wire.pickling import pickle_for_workers


@dataclass(frozen=True)
class _Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    version: int
    take_policy: TakePolicy
    snapshot: Snapshot


class Publisher:
    """Holds what was published last. Publishing never waits for a pull."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._newest: _Publication | None = None
        self._policy: Policy | None = None

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return 0 if self._newest is None else self._newest.version

    def publish(self, policy: Policy) -> int:
        """Make the weights of ``policy`` available; bit-equal weights are no new version."""
        with self._lock:
            newest = self._newest
            snapshot = Snapshot(policy.weights())
            if newest is None or policy is not self._policy:
                take = self._introduce(policy, snapshot)
                self._newest = _Publication(self.version + 1, take, snapshot)
                self._policy = policy
            elif snapshot.layout != newest.snapshot.layout:
                raise ValueError(_difference(newest.snapshot.layout, snapshot.layout))
            elif snapshot.vector != newest.snapshot.vector:
                self._newest = replace(newest, version=newest.version + 1, snapshot=snapshot)
            return self.version

    def _introduce(self, policy: Policy, snapshot: Snapshot) -> TakePolicy:
        policy_id = 1 if self._newest is None else self._newest.take_policy.policy_id + 1
        layout = encode_layout(snapshot.layout)
        return TakePolicy(policy_id, pickle_for_workers(policy), layout)

    def answer(self, worker: str, pull: Pull) -> Sequence[tuple[Message, Sequence[Buffer]]]:
        """What a worker that pulls is sent: the newest weights, and the policy if it is new.

        Runs on the I/O thread, which computes the checksum: the learner does not wait for it.
        """
        newest = self._newest
        if newest is None:
            return []
        take, snapshot = newest.take_policy, newest.snapshot
        self._ledger.record_pull(worker, newest.version, pull.cause, len(snapshot.vector))
        weights = Weights(take.policy_id, newest.version, snapshot.checksum)
        frames = [memoryview(snapshot.vector)]
        if pull.policy_id == take.policy_id:
            return [(weights, frames)]
        return [(take, ()), (weights, frames)]


def _difference(announced: Layout, now: Layout) -> str:
    changed = sorted({name for name, *_ in set(announced) ^ set(now)})
    return (
        f"the weights {changed} have another name, dtype or shape than when this policy was first "
        "published; publish a new policy object instead"
    )
