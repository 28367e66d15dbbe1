"""What a host may say about joining and pulling, and how often: each time costs the head."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterenv.errors import ProtocolError
from clusterenv.protocol.message import Message
from clusterenv.wire.messages import Built, Hello, Pull, WorkerLost

_MOST_JOINS_AT_ONCE = 100
_JOINS_PER_SECOND = 1.0
_MOST_LOSSES_AT_ONCE = 1_000
_LOSSES_PER_SECOND = 10.0
_MOST_PULLS_OF_A_VERSION = 100
_MOST_WORKERS = 10_000
_LONGEST_TEXT = 256
_MOST_VERSIONS = 32


class RateLimits:
    """Raises ProtocolError where a host says too much of what the head answers at once."""

    def __init__(
        self, newest: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._newest, self._clock = newest, clock
        self._joins = _Budget("messages about joining", _MOST_JOINS_AT_ONCE, _JOINS_PER_SECOND)
        self._losses = _Budget("losses of workers", _MOST_LOSSES_AT_ONCE, _LOSSES_PER_SECOND)
        # By host: the newest version, and how often it was pulled.
        self._pulls: dict[str, tuple[int, int]] = {}

    def check(self, host: str, message: Message) -> None:
        """Look at a message before it is answered or kept."""
        match message:
            case Hello():
                self._joins.spend(host, self._clock())
                _check_hello(message)
            case Built():
                self._joins.spend(host, self._clock())
            case WorkerLost():
                self._losses.spend(host, self._clock())
            case Pull():
                self._count_pull(host)
                _check_text("cause of a pull", message.cause)

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
        """``host`` is gone."""
        self._joins.forget(host)
        self._losses.forget(host)
        self._pulls.pop(host, None)


class _Budget:
    """So many at once, and so many more with every second."""

    def __init__(self, what: str, most: int, per_second: float) -> None:
        self._what, self._most, self._per_second = what, most, per_second
        # By host: how many more it may send now, and when that was so.
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, host: str, now: float) -> None:
        left, since = self._left.get(host, (float(self._most), now))
        left = min(self._most, left + (now - since) * self._per_second) - 1
        if left < 0:
            raise ProtocolError(f"sent more than {self._most} {self._what} at once")
        self._left[host] = left, now

    def forget(self, host: str) -> None:
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
