"""Limits how often a host may send what nobody asked for: each message costs the head."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterenv.errors import ProtocolError
from clusterenv.protocol.message import Message
from clusterenv.wire.messages import (
    Built,
    Hello,
    Leaving,
    Pull,
    Ready,
    StaffReport,
    Warned,
    WorkerLost,
    WorkerStuck,
)

_MOST_JOINS_AT_ONCE = 100
_JOINS_PER_SECOND = 1.0
_MOST_LOSSES_AT_ONCE = 1_000
_LOSSES_PER_SECOND = 10.0
_MOST_NEWS_AT_ONCE = 1_000
_NEWS_PER_SECOND = 50.0
_MOST_WARNINGS_AT_ONCE = 5_000
_WARNINGS_PER_SECOND = 100.0
_MOST_LATE_AT_ONCE = 10_000
_LATE_PER_SECOND = 1_000.0
_MOST_PULLS_OF_A_VERSION = 20
_MOST_WORKERS = 10_000
_LONGEST_TEXT = 256
_MOST_VERSIONS = 32


class RateLimits:
    """Raises ProtocolError if a host sends too much of what the head answers at once."""

    def __init__(
        self, newest: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._newest, self._clock = newest, clock
        self._joins = Allowance("messages about joining", _MOST_JOINS_AT_ONCE, _JOINS_PER_SECOND)
        self._losses = Allowance("losses of workers", _MOST_LOSSES_AT_ONCE, _LOSSES_PER_SECOND)
        self._news = Allowance("reports of its workers", _MOST_NEWS_AT_ONCE, _NEWS_PER_SECOND)
        self._warnings = Allowance("warnings", _MOST_WARNINGS_AT_ONCE, _WARNINGS_PER_SECOND)
        self._late = Allowance("answers that are too late", _MOST_LATE_AT_ONCE, _LATE_PER_SECOND)
        # By host: the newest version, and how often it was pulled.
        self._pulls: dict[str, tuple[int, int]] = {}

    def check(self, host: str, message: Message) -> None:
        """Check a message before it is answered or kept."""
        match message:
            case Hello():
                self._joins.spend(host, self._clock())
                _check_hello(message)
            case Built():
                self._joins.spend(host, self._clock())
            case WorkerLost() | WorkerStuck():
                self._losses.spend(host, self._clock())
            case StaffReport() | Leaving() | Ready():
                self._news.spend(host, self._clock())
            case Warned():
                self._warnings.spend(host, self._clock())
            case Pull():
                self._count_pull(host)
                _check_text("cause of a pull", message.cause)

    def late(self, host: str) -> None:
        """Count an answer from an epoch that is over; after an abandon a few are expected."""
        self._late.spend(host, self._clock())

    def _count_pull(self, host: str) -> None:
        newest = self._newest()
        version, count = self._pulls.get(host, (newest, 0))
        count = count + 1 if version == newest else 1
        if count > _MOST_PULLS_OF_A_VERSION:
            raise ProtocolError(
                f"pulled version {newest} more than {_MOST_PULLS_OF_A_VERSION} times"
            )
        self._pulls[host] = newest, count

    def forget(self, host: str) -> None:
        """Forget a host that is gone."""
        for budget in (self._joins, self._losses, self._news, self._warnings, self._late):
            budget.forget(host)
        self._pulls.pop(host, None)


class Allowance:
    """For each host, this many at once, and this many more every second."""

    def __init__(self, what: str, most: int, per_second: float) -> None:
        self._what, self._most, self._per_second = what, most, per_second
        # By host: how many more it may send, and when that was computed.
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, host: str, now: float) -> bool:
        """Spend one if there is one left; returns whether there was."""
        left, since = self._left.get(host, (float(self._most), now))
        left = min(self._most, left + (now - since) * self._per_second)
        if left < 1:
            return False
        self._left[host] = left - 1, now
        return True

    def spend(self, host: str, now: float) -> None:
        """Spend one; ProtocolError if there is none left."""
        if not self.allows(host, now):
            raise ProtocolError(f"sent more than {self._most} {self._what} at once")

    def forget(self, host: str) -> None:
        """Forget a host that is gone."""
        self._left.pop(host, None)


def _check_hello(hello: Hello) -> None:
    if not 1 <= hello.workers <= _MOST_WORKERS:
        raise ProtocolError(f"{hello.workers} workers in a Hello")
    if len(hello.versions) > _MOST_VERSIONS:
        raise ProtocolError(f"{len(hello.versions)} versions in a Hello")
    for text in (hello.machine, hello.place, *hello.versions, *hello.versions.values()):
        _check_text("text of a Hello", text)


def _check_text(what: str, text: str) -> None:
    if len(text) > _LONGEST_TEXT or not text.isprintable():
        raise ProtocolError(f"a {what} is {text!r:.40}, which is too long or no plain text")
