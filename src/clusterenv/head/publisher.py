"""The newest policy: published by the learner's thread, handed out to hosts that pull."""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, replace

from clusterenv.arrays import Buffer
from clusterenv.host.events import PullWanted
from clusterenv.policies.base import Policy
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.policies.encoding import Layout, encode
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Measured, Newest
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import EVALUATION
from clusterenv.wire.parcels import Packer


@dataclass(frozen=True)
class Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    version: int
    policy: TakePolicy
    snapshot: Snapshot
    policy_since: int
    """The version with which this policy object came."""


@dataclass(frozen=True)
class Encoded:
    """A version as it travels to one host."""

    publication: Publication
    encoding: str
    base: int
    """The version that a difference starts from."""
    weights: Buffer


class Publisher:
    """Holds what was published last, and what hosts still hold. Publishing never waits."""

    def __init__(self, ledger: Ledger, encoding: str, packer: Packer) -> None:
        self._ledger, self._encoding, self._packer = ledger, encoding, packer
        self._lock = threading.Lock()
        self.newest: Publication | None = None
        self._policy: Policy | None = None
        # By policy: the version with which it came.
        self._first_versions: list[int] = []
        # By host: what it was sent last, to act with. Used by whoever answers pulls, one at a time.
        self._held: dict[str, Publication] = {}
        self._encoded: dict[tuple[int, int], tuple[str, Buffer]] = {}

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return 0 if self.newest is None else self.newest.version

    def policy_of(self, version: int) -> int:
        """The id of the policy that this version belongs to."""
        return bisect.bisect_right(self._first_versions, version)

    def news(self, measured: Measured | None = None) -> Newest:
        """What hosts are told."""
        newest = self.newest
        if newest is None:
            return Newest(0, 0)
        return Newest(newest.policy.policy_id, newest.version, measured)

    def publish(self, policy: Policy) -> int:
        """Make the weights of ``policy`` available; bit-equal weights are no new version."""
        with self._lock:
            newest = self.newest
            snapshot = Snapshot(policy.weights(), self._encoding)
            if newest is None or policy is not self._policy:
                take = self._introduce(policy, snapshot)
                version = self.version + 1
                self._first_versions.append(version)
                self.newest = Publication(version, take, snapshot, policy_since=version)
                self._policy = policy
            elif snapshot.layout != newest.snapshot.layout:
                raise ValueError(_difference(newest.snapshot.layout, snapshot.layout))
            elif snapshot.vector != newest.snapshot.vector:
                self.newest = replace(newest, version=newest.version + 1, snapshot=snapshot)
            if self.newest is not newest:
                self._ledger.record_version(self.version, len(snapshot.vector))
            return self.version

    def _introduce(self, policy: Policy, snapshot: Snapshot) -> TakePolicy:
        policy_id = 1 if self.newest is None else self.newest.policy.policy_id + 1
        layout = encode_layout(snapshot.layout)
        return TakePolicy(policy_id, self._packer.pack(policy), layout)

    def hand_over(self, host: str, pull: PullWanted) -> Publication:
        """For a host in this process: the newest version as it is."""
        newest = self._newest_for(host, pull)
        num_bytes = len(newest.snapshot.vector)
        self._ledger.record_pull(
            host,
            newest.version,
            held=pull.held,
            cause=pull.cause,
            num_bytes=0,
            threshold=pull.threshold,
            shares_memory=True,
        )
        self._ledger.count_shared(num_bytes)
        return newest

    def encode_for(self, host: str, pull: PullWanted) -> Encoded:
        """For a host behind a socket: the newest version, encoded.

        Runs on the thread that serves pulls, which also computes the checksum: the learner does
        not wait for it.
        """
        held = self._held.get(host)
        newest = self._newest_for(host, pull)
        known = newest.policy.policy_id, 0 if held is None else held.version
        base = held if (pull.policy_id, pull.held) == known else None
        encoding, data = self._encode(newest, None if pull.cause == EVALUATION else base)
        self._ledger.record_pull(
            host,
            newest.version,
            held=pull.held,
            cause=pull.cause,
            num_bytes=len(data),
            threshold=pull.threshold,
        )
        starts_from = base.version if base is not None and encoding == "delta" else 0
        return Encoded(newest, encoding, starts_from, data)

    def _newest_for(self, host: str, pull: PullWanted) -> Publication:
        newest = self.newest
        assert newest is not None, "a host pulls before anything was published"
        if pull.cause != EVALUATION:
            self._held[host] = newest
        return newest

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

    def forget(self, host: str) -> None:
        """``host`` is gone."""
        self._held.pop(host, None)
        self._ledger.forget(host)


def _difference(announced: Layout, now: Layout) -> str:
    changed = sorted({name for name, *_ in set(announced) ^ set(now)})
    return (
        f"the weights {changed} have another name, dtype or shape than when this policy was first "
        "published; publish a new policy object instead"
    )
