"""The newest policy: published by the learner's thread, pulled through the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from clusterenv.arrays import Buffer
from clusterenv.head.reception import Replies
from clusterenv.policies.base import Policy
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.policies.encoding import Layout, encode
from clusterenv.sync import EVALUATION
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.messages import Message, Pull, Pulled, TakePolicy, Weights, WeightsNearby
from clusterenv.wire.parcels import Packer
from clusterenv.wire.shelf import WORTH_SHARING_BYTES


@dataclass(frozen=True)
class Publication:
    """One version, ready to be pulled. Immutable, so that a pull never sees half of it."""

    version: int
    take_policy: TakePolicy
    snapshot: Snapshot
    policy_since: int
    """The version with which this policy object came."""


@dataclass
class _Fetch:
    version: int
    worker: str
    shelf: tuple[int, int] | None = None
    waiting: list[tuple[str, Pull, Publication]] = field(default_factory=list)


class Neighbours:
    """Who fetches for whom: one fetch per host and version. Used by the I/O thread."""

    def __init__(self, neighbourhood_of: Callable[[str], tuple[str, int]]) -> None:
        self._neighbourhood_of = neighbourhood_of
        # By host: the version, who fetches it, where it lies once it is there, and who waits.
        self._fetches: dict[str, _Fetch] = {}

    def shelf_for(self, worker: str, version: int) -> tuple[int, int] | None:
        """Process and descriptor of a neighbour's shelf that has this version."""
        fetch = self._fetches.get(self._neighbourhood_of(worker)[0])
        return fetch.shelf if fetch is not None and fetch.version == version else None

    def waits(self, worker: str, pull: Pull, newest: Publication) -> bool:
        """Whether ``worker`` is to wait for a neighbour; if not, it is the one that fetches."""
        host = self._neighbourhood_of(worker)[0]
        fetch = self._fetches.get(host)
        if fetch is not None and fetch.version == newest.version and fetch.worker != worker:
            fetch.waiting.append((worker, pull, newest))
            return True
        if host:
            self._fetches[host] = _Fetch(newest.version, worker)
        return False

    def pulled(self, worker: str, message: Pulled) -> list[tuple[str, Pull, Publication]]:
        """``worker`` has what it fetched: who waited for it."""
        host, pid = self._neighbourhood_of(worker)
        fetch = self._fetches.get(host)
        if fetch is None or (fetch.worker, fetch.version) != (worker, message.version):
            return []
        if message.shelf >= 0:
            fetch.shelf = pid, message.shelf
        else:
            del self._fetches[host]
        waiting, fetch.waiting = fetch.waiting, []
        return waiting

    def forget(self, worker: str) -> None:
        """``worker`` is gone; whoever waits for it will ask again."""
        for host, fetch in list(self._fetches.items()):
            if fetch.worker == worker:
                self._fetches.pop(host, None)


class Publisher:
    """Holds what was published last, and what workers still hold. Publishing never waits."""

    def __init__(
        self,
        ledger: Ledger,
        encoding: str,
        neighbourhood_of: Callable[[str], tuple[str, int]],
        packer: Packer,
    ) -> None:
        self._ledger, self._encoding, self._packer = ledger, encoding, packer
        self._neighbours = Neighbours(neighbourhood_of)
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
        return TakePolicy(policy_id, self._packer.pack(policy), layout)

    def answer(self, worker: str, pull: Pull) -> Replies:
        """What a worker that pulls is sent: the newest weights, and the policy if it is new.

        Nothing at first where a neighbour is fetching them: :meth:`pulled` answers then. Runs on
        the I/O thread, which encodes and computes the checksum: the learner does not wait for it.
        """
        newest = self.newest
        if newest is None:
            return []
        if not pull.direct and len(newest.snapshot.vector) >= WORTH_SHARING_BYTES:
            shelf = self._neighbours.shelf_for(worker, newest.version)
            if shelf is not None:
                return self._point_to(shelf, worker, pull, newest)
            if self._neighbours.waits(worker, pull, newest):
                return []
        base = self._base(worker, pull, newest)
        encoding, data = self._encode(newest, base)
        weights = Weights(
            newest.take_policy.policy_id,
            newest.version,
            newest.snapshot.checksum,
            encoding,
            base.version if base is not None and encoding == "delta" else 0,
        )
        self._record(worker, pull, newest, len(data))
        return self._with_policy(pull, newest, (weights, [data]))

    def pulled(self, worker: str, message: Pulled) -> Iterator[tuple[str, Replies]]:
        """A worker has loaded a version: what its neighbours that waited for that are sent."""
        for neighbour, pull, publication in self._neighbours.pulled(worker, message):
            shelf = self._neighbours.shelf_for(neighbour, publication.version)
            if shelf is None:
                direct = msgspec.structs.replace(pull, direct=True)
                yield neighbour, self.answer(neighbour, direct)
            else:
                yield neighbour, self._point_to(shelf, neighbour, pull, publication)

    def _point_to(
        self, shelf: tuple[int, int], worker: str, pull: Pull, newest: Publication
    ) -> Replies:
        self._base(worker, pull, newest)
        self._record(worker, pull, newest, 0)
        policy_id, checksum = newest.take_policy.policy_id, newest.snapshot.checksum
        nearby = WeightsNearby(policy_id, newest.version, checksum, *shelf)
        return self._with_policy(pull, newest, (nearby, ()))

    def _with_policy(
        self, pull: Pull, newest: Publication, reply: tuple[Message, Sequence[Buffer]]
    ) -> Replies:
        if pull.policy_id == newest.take_policy.policy_id:
            return [reply]
        return [(newest.take_policy, ()), reply]

    def _record(self, worker: str, pull: Pull, newest: Publication, num_bytes: int) -> None:
        self._ledger.record_pull(
            worker,
            newest.version,
            held=pull.held,
            cause=pull.cause,
            num_bytes=num_bytes,
            threshold=pull.threshold,
        )

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
        self._neighbours.forget(worker)


def _difference(announced: Layout, now: Layout) -> str:
    changed = sorted({name for name, *_ in set(announced) ^ set(now)})
    return (
        f"the weights {changed} have another name, dtype or shape than when this policy was first "
        "published; publish a new policy object instead"
    )
