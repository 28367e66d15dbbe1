"""What a ledger counts: pulls and their cost, losses and their reasons."""

from __future__ import annotations

from collections import Counter, deque

from clusterenv.sync.records import Loss, PullRecord, Version
from clusterenv.sync.rules import EVALUATION

KEPT = 100_000
"""Records beyond this many are forgotten, the oldest first; totals are not."""
_KEPT_LOSSES = 10_000
# A sync rule has a handful of causes; a host could make up any number.
_MOST_CAUSES = 100


class PullTally:
    """The versions that were published, and the pulls of them."""

    def __init__(self) -> None:
        self.versions: deque[Version] = deque(maxlen=KEPT)
        self.pulls: deque[PullRecord] = deque(maxlen=KEPT)
        self.latencies_s: deque[float] = deque(maxlen=KEPT)
        self.by_host: Counter[str] = Counter()
        self.by_cause: Counter[str] = Counter()
        self.held_by_host: dict[str, int] = {}
        """The version that each present host was last sent, to act with."""
        self.threshold_by_host: dict[str, float] = {}
        """… and the threshold of its sync rule at that time."""
        self.bytes_of_always_pulling = 0
        self._pulling: set[str] = set()

    def add_version(self, version: Version) -> None:
        """Weights were published."""
        self.versions.append(version)
        self.bytes_of_always_pulling += version.bytes * len(self._pulling)

    def add_pull(self, pull: PullRecord, *, shares_memory: bool) -> None:
        """A host fetched weights."""
        host = pull.host
        self.pulls.append(pull)
        self.by_host[host] += 1
        _count(self.by_cause, pull.cause)
        if pull.cause == EVALUATION:
            return
        self.held_by_host[host] = pull.version
        self.threshold_by_host[host] = pull.threshold
        if not shares_memory and host not in self._pulling:
            # From here on it would have pulled every version.
            self._pulling.add(host)
            self.bytes_of_always_pulling += self.versions[-1].bytes

    def add_latency(self, seconds: float) -> None:
        """A host has loaded what it asked for ``seconds`` ago."""
        self.latencies_s.append(seconds)

    def forget(self, host: str) -> None:
        """A host is gone, and would not have pulled later versions."""
        self._pulling.discard(host)
        self.held_by_host.pop(host, None)
        self.threshold_by_host.pop(host, None)


class LossTally:
    """The workers and hosts that were lost."""

    def __init__(self) -> None:
        self.losses: deque[Loss] = deque(maxlen=_KEPT_LOSSES)
        self.by_host: Counter[str] = Counter()
        self.by_reason: Counter[str] = Counter()

    def add(self, loss: Loss) -> None:
        """A worker was lost, or a whole host."""
        self.losses.append(loss)
        self.by_host[loss.host] += 1
        _count(self.by_reason, loss.reason.partition("\n")[0])


def _count(counter: Counter[str], cause: str) -> None:
    """Count one more of this cause; beyond the limit on causes, as ``other``."""
    known = cause in counter or len(counter) < _MOST_CAUSES
    counter[cause if known else "other"] += 1
