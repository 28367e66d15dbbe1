"""The newest policy: published by the learner's thread, pulled through the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterenv.ledger import Ledger
from clusterenv.policies.base import Policy
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.policies.encoding import Layout, encode
from clusterenv.sync import EVALUATION
from clusterenv.wire.codec import Buffer
from clusterenv.wire.messages import Message, Pull, TakePolicy, Weights
from clusterenv.wire.pickling import pickle_for_workers


@dataclass(frozen=True)
class Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    version: int
    take_policy: TakePolicy
    snapshot: Snapshot
    policy_since: int
    """The version with which this policy object came."""


class Publisher:
    """Holds what was published last, and what workers still hold. Publishing never waits."""

    def __init__(self, ledger: Ledger, encoding: str) -> None:
        self._ledger, self._encoding = ledger, encoding
        self._lock = threading.Lock()
        self.newest: Publication | None = None
        self._policy: Policy | None = None
        # Used by the I/O thread alone.
        self._held: dict[str, Publication] = {}
        self._encoded: dict[tuple[int, int], tuple[str, Buffer]] = {}

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return 0 if self.newest is None else self.newest.version

    def publish(self, policy: Policy) -> int:
        """Make the weights of ``policy`` available; bit-equal weights are no new version."""
        with self._lock:
            newest = self.newest
            snapshot = Snapshot(policy.weights(), self._encoding)
            if newest is None or policy is not self._policy:
                take = self._introduce(policy, snapshot)
                version = self.version + 1
                self.newest = Publication(version, take, snapshot, policy_since=version)
                self._policy = policy
            elif snapshot.layout != newest.snapshot.layout:
                raise ValueError(_difference(newest.snapshot.layout, snapshot.layout))
            elif snapshot.vector != newest.snapshot.vector:
                self.newest = replace(newest, version=newest.version + 1, snapshot=snapshot)
            assert self.newest is not None
            if self.newest is not newest:
                self._ledger.record_version(self.version, len(snapshot.vector))
            return self.version

    def _introduce(self, policy: Policy, snapshot: Snapshot) -> TakePolicy:
        policy_id = 1 if self.newest is None else self.newest.take_policy.policy_id + 1
        layout = encode_layout(snapshot.layout)
        return TakePolicy(policy_id, pickle_for_workers(policy), layout)

    def answer(self, worker: str, pull: Pull) -> Sequence[tuple[Message, Sequence[Buffer]]]:
        """What a worker that pulls is sent: the newest weights, and the policy if it is new.

        Runs on the I/O thread, which encodes and computes the checksum: the learner does not wait
        for it.
        """
        newest = self.newest
        if newest is None:
            return []
        take = newest.take_policy
        base = self._base(worker, pull, newest)
        encoding, data = self._encode(newest, base)
        weights = Weights(
            take.policy_id,
            newest.version,
            newest.snapshot.checksum,
            encoding,
            base.version if base is not None and encoding == "delta" else 0,
        )
        self._ledger.record_pull(
            worker,
            newest.version,
            held=pull.held,
            cause=pull.cause,
            num_bytes=len(data),
            threshold=pull.threshold,
        )
        if pull.policy_id == take.policy_id:
            return [(weights, [data])]
        return [(take, ()), (weights, [data])]

    def _base(self, worker: str, pull: Pull, newest: Publication) -> Publication | None:
        """The version that a delta may start from: what the worker says it has, if we have it."""
        if pull.cause == EVALUATION:
            return None
        held = self._held.get(worker)
        self._held[worker] = newest
        known = newest.take_policy.policy_id, 0 if held is None else held.version
        if (pull.policy_id, pull.held) != known:
            return None
        return held

    def _encode(self, newest: Publication, base: Publication | None) -> tuple[str, Buffer]:
        key = newest.version, 0 if base is None else base.version
        if key not in self._encoded:
            self._encoded = {k: v for k, v in self._encoded.items() if k[0] == newest.version}
            snapshot = newest.snapshot
            self._encoded[key] = encode(
                snapshot.vector,
                snapshot.layout,
                self._encoding,
                None if base is None else base.snapshot.vector,
            )
        return self._encoded[key]

    def forget(self, worker: str) -> None:
        """``worker`` is gone."""
        self._held.pop(worker, None)


def _difference(announced: Layout, now: Layout) -> str:
    changed = sorted({name for name, *_ in set(announced) ^ set(now)})
    return (
        f"the weights {changed} have another name, dtype or shape than when this policy was first "
        "published; publish a new policy object instead"
    )
