"""The record of what moved and why: versions, pulls with their causes, bytes, divergences."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

from clusterenv.sync.rules import EVALUATION

# Records beyond this many are forgotten, the oldest first; totals are not.
_KEPT = 100_000
# A sync rule has a handful; a host could make up any number.
_MOST_CAUSES = 100
_ANNOUNCEMENTS = ("Announce", "Pull", "Pulled")


@dataclass(frozen=True)
class Version:
    """Weights were published."""

    time_s: float
    """Since the run began."""
    version: int
    bytes: int
    """Of the whole vector in full precision."""


@dataclass(frozen=True)
class Pull:
    """A host fetched weights."""

    time_s: float
    """Since the run began."""
    host: str
    version: int
    held: int
    """The version that it had before; 0 for none."""
    cause: str
    """In the sync rule's word: ``first``, ``threshold`` …; ``evaluation`` for :meth:`evaluate`."""
    bytes: int
    """Of the weights alone, as encoded."""
    threshold: float
    """Of its sync rule then, where it has one."""

    @property
    def lag(self) -> int:
        """How many versions the host was behind."""
        return self.version - self.held


@dataclass(frozen=True)
class Measurement:
    """The head measured how far a host's copy is from the newest version."""

    time_s: float
    host: str
    held: int
    newest: int
    divergence: float
    standard_error: float
    effective_sample_size: float
    realised: float | None
    """What the last decision led to: the divergence of its rows from what was newest then."""


class Ledger:
    """What moved between head and hosts. Written by the head's threads, read by anyone."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bytes_by_kind: Counter[str] = Counter()
        self._versions: deque[Version] = deque(maxlen=_KEPT)
        self._pulls: deque[Pull] = deque(maxlen=_KEPT)
        self._latencies_s: deque[float] = deque(maxlen=_KEPT)
        self._measurements: deque[Measurement] = deque(maxlen=_KEPT)
        self._pulls_by_host: Counter[str] = Counter()
        self._pulls_by_cause: Counter[str] = Counter()
        self._pulling: set[str] = set()
        self._bytes_of_always_pulling = 0
        self._shared_bytes = 0
        self._held_by_host: dict[str, int] = {}
        self._latest_by_host: dict[str, Measurement] = {}

    def count(self, kind: str, num_bytes: int) -> None:
        """Bytes of a message that went through the socket."""
        self._bytes_by_kind[kind] += num_bytes

    def count_shared(self, num_bytes: int) -> None:
        """Bytes of weights that were copied into shared memory, and through no socket."""
        self._shared_bytes += num_bytes

    def forget(self, host: str) -> None:
        """A host is gone: it would not have pulled later versions."""
        self._pulling.discard(host)

    def record_version(self, version: int, num_bytes: int) -> None:
        """Weights were published."""
        self._versions.append(Version(self._now_s(), version, num_bytes))
        self._bytes_of_always_pulling += num_bytes * len(self._pulling)

    def record_pull(
        self,
        host: str,
        version: int,
        *,
        held: int,
        cause: str,
        num_bytes: int,
        threshold: float,
        shares_memory: bool = False,
    ) -> None:
        """A host that has ``held`` is being sent ``version``; or takes it from shared memory."""
        self._pulls.append(Pull(self._now_s(), host, version, held, cause, num_bytes, threshold))
        self._pulls_by_host[host] += 1
        known = cause in self._pulls_by_cause or len(self._pulls_by_cause) < _MOST_CAUSES
        self._pulls_by_cause[cause if known else "other"] += 1
        if cause != EVALUATION:
            self._held_by_host[host] = version
        if cause != EVALUATION and not shares_memory and host not in self._pulling:
            # From here on it would have pulled every version.
            self._pulling.add(host)
            self._bytes_of_always_pulling += self._versions[-1].bytes

    def record_latency(self, seconds: float) -> None:
        """A host has loaded what it asked for so long ago."""
        self._latencies_s.append(seconds)

    def record_measurement(
        self,
        host: str,
        *,
        held: int,
        newest: int,
        divergence: float,
        standard_error: float,
        effective_sample_size: float,
        realised: float | None,
    ) -> None:
        """The divergence of a host's copy from the newest version was measured."""
        measurement = Measurement(
            self._now_s(),
            host,
            held,
            newest,
            divergence,
            standard_error,
            effective_sample_size,
            realised,
        )
        self._measurements.append(measurement)
        self._latest_by_host[host] = measurement

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def uptime_s(self) -> float:
        """How long ago the run began."""
        return self._now_s()

    @property
    def held_by_host(self) -> dict[str, int]:
        """The version that each host was sent last, to act with."""
        return dict(self._held_by_host)

    @property
    def latest_by_host(self) -> dict[str, Measurement]:
        """The latest measured divergence of each host."""
        return dict(self._latest_by_host)

    @property
    def versions(self) -> list[Version]:
        """The versions so far, in order; of very long runs the last ones."""
        return list(self._versions)

    @property
    def pulls(self) -> list[Pull]:
        """The pulls so far, in order; of very long runs the last ones."""
        return list(self._pulls)

    @property
    def measurements(self) -> list[Measurement]:
        """The measured divergences so far, in order; of very long runs the last ones."""
        return list(self._measurements)

    @property
    def pull_latencies_s(self) -> list[float]:
        """How long each pull took a host, from asking to having loaded."""
        return list(self._latencies_s)

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes through the socket so far, both ways, by message kind (``Weights`` …)."""
        return dict(self._bytes_by_kind)

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights that hosts in this process took by shared memory."""
        return self._shared_bytes

    @property
    def pulls_by_host(self) -> dict[str, int]:
        """How often each host has pulled."""
        return dict(self._pulls_by_host)

    @property
    def pulls_by_cause(self) -> dict[str, int]:
        """How often hosts pulled for each reason."""
        return dict(self._pulls_by_cause)

    @property
    def sync_bytes(self) -> int:
        """Bytes through the socket for weights, pulls and announcements.

        Not the policies themselves (``TakePolicy``, once each), nor the few tens of bytes that a
        divergence adds to the requests it travels with.
        """
        return sum(self._bytes_by_kind[kind] for kind in ("Weights", *_ANNOUNCEMENTS))

    @property
    def bytes_of_always_pulling(self) -> int:
        """What the weights would have cost, had each host pulled every version in full."""
        return self._bytes_of_always_pulling

    @property
    def bytes_avoided(self) -> int:
        """What was saved against pulling every version in full."""
        return self.bytes_of_always_pulling - self.sync_bytes
