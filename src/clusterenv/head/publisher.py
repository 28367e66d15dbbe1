"""The newest policy: published by the learner's thread, given to hosts that pull."""

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

# One that is trained, and one that is only evaluated.
_MOST_POLICIES = 2


@dataclass(frozen=True, eq=False)
class Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    version: int
    policy: TakePolicy
    snapshot: Snapshot
    policy_since: int
    """The version at which this policy object was first published."""


@dataclass(frozen=True)
class Encoded:
    """A version as it travels to one host."""

    publication: Publication
    encoding: str
    base: int
    """The version that a delta starts from."""
    weights: Buffer


class Publisher:
    """Holds what was published last, and what hosts still hold. Publishing never waits."""

    def __init__(self, ledger: Ledger, encoding: str, packer: Packer) -> None:
        self._ledger, self._encoding, self._packer = ledger, encoding, packer
        self._lock = threading.Lock()
        self.newest: Publication | None = None
        # The latest ones, the newest last.
        self._introduced: list[tuple[Policy, TakePolicy]] = []
        self._num_introduced = 0
        # The versions at which the policy object changed …
        self._first_versions: list[int] = []
        # … and the ids of those policies: one that comes back has its old id.
        self._ids: list[int] = []
        # By host: what it was last sent to act with. Used only by the thread that answers pulls.
        self._held: dict[str, Publication] = {}
        # The last two that requests to hosts named by version.
        self._promised: list[Publication] = []
        self._encoded: dict[tuple[int, int], tuple[str, Buffer]] = {}

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return 0 if self.newest is None else self.newest.version

    def policy_of(self, version: int) -> int:
        """The number of the policy object: one more with each change to another object."""
        return bisect.bisect_right(self._first_versions, version)

    def policy_id_of(self, version: int) -> int:
        """The id by which hosts know the policy that a version belongs to."""
        return self._ids[self.policy_of(version) - 1]

    def news(self, measured: Measured | None = None) -> Newest:
        """The news that hosts get."""
        newest = self.newest
        if newest is None:
            return Newest(0, 0)
        return Newest(newest.policy.policy_id, newest.version, measured)

    def promise(self) -> None:
        """Let hosts pull the newest version by its number, until two others were promised."""
        newest = self.newest
        if newest is not None and newest not in self._promised:
            self._promised = [*self._promised[-1:], newest]

    def publish(self, policy: Policy) -> int:
        """Make the weights of ``policy`` available; bit-equal weights make no new version."""
        with self._lock:
            newest = self.newest
            snapshot = Snapshot(policy.weights(), self._encoding)
            if newest is None or policy is not self._introduced[-1][0]:
                self._change_to(self._introduce(policy, snapshot), snapshot)
            elif snapshot.layout != newest.snapshot.layout:
                raise ValueError(_difference(newest.snapshot.layout, snapshot.layout))
            elif snapshot.vector != newest.snapshot.vector:
                self.newest = replace(newest, version=newest.version + 1, snapshot=snapshot)
            if self.newest is not newest:
                self._ledger.record_version(self.version, len(snapshot.vector))
            return self.version

    def take_back(self, version: int, before: Publication | None) -> None:
        """Publish ``before`` again if the newest version is this one, and of another policy.

        A policy that was only evaluated is not the one to go on with.
        """
        with self._lock:
            newest = self.newest
            if newest is None or before is None or newest.version != version:
                return
            policy_id = before.policy.policy_id
            if newest.policy.policy_id != policy_id:
                self._introduced.sort(key=lambda known: known[1].policy_id == policy_id)
                self._change_to(before.policy, before.snapshot)
                self._ledger.record_version(self.version, len(before.snapshot.vector))

    def _change_to(self, take: TakePolicy, snapshot: Snapshot) -> None:
        version = self.version + 1
        self._first_versions.append(version)
        self._ids.append(take.policy_id)
        self.newest = Publication(version, take, snapshot, policy_since=version)

    def _introduce(self, policy: Policy, snapshot: Snapshot) -> TakePolicy:
        """What hosts are sent first; for a policy that they had before, the same as then.

        This tells workers whether their recurrent state belongs to this policy: evaluating another
        one between two rollouts must not disturb them.
        """
        layout = encode_layout(snapshot.layout)
        for known, take in self._introduced:
            if known is policy and take.layout == layout:
                break
        else:
            packed = self._packer.pack(policy)
            self._num_introduced += 1
            take = TakePolicy(self._num_introduced, packed, layout)
        others = [one for one in self._introduced if one[0] is not policy]
        self._introduced = [*others[1 - _MOST_POLICIES :], (policy, take)]
        return take

    def introduced(self, policy_id: int) -> TakePolicy | None:
        """A policy as hosts get it, if it is one of the latest."""
        takes = [take for _, take in self._introduced if take.policy_id == policy_id]
        return takes[0] if takes else None

    def hand_over(self, host: str, pull: PullWanted) -> Publication:
        """For a host in this process: the version that it wants, unencoded."""
        newest = self._wanted_by(host, pull)
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
        """For a host behind a socket: the version that it wants, encoded.

        Runs on the thread that serves pulls, which also computes the checksum: the learner does
        not wait for it.
        """
        held = self._held.get(host)
        newest = self._wanted_by(host, pull)
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

    def _wanted_by(self, host: str, pull: PullWanted) -> Publication:
        """The version that it names, or a later one of the same policy; else the newest."""
        newest = self.newest
        assert newest is not None, "a host pulls before anything was published"
        if pull.version:
            policy_id = self.policy_id_of(pull.version)
            for one in self._promised:
                if one.policy.policy_id == policy_id and one.version >= pull.version:
                    newest = one
                    break
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
        """Forget a host that is gone."""
        self._held.pop(host, None)
        self._ledger.forget(host)


def _difference(announced: Layout, now: Layout) -> str:
    changed = sorted({name for name, *_ in set(announced) ^ set(now)})
    return (
        f"the weights {changed} have another name, dtype or shape than when this policy was first "
        "published; publish a new policy object instead"
    )
