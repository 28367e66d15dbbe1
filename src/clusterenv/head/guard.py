"""What a worker may say to the I/O thread, and how often: each such message costs the head."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterenv.errors import ProtocolError
from clusterenv.wire.messages import Built, Hello, Message, Pull

_MOST_JOINS_AT_ONCE = 100
_JOINS_PER_SECOND = 1.0
# A worker has two copies, and asks again where a neighbour's shelf is of no use.
_MOST_PULLS_OF_A_VERSION = 100
_LONGEST_TEXT = 256
_MOST_VERSIONS = 32


class Guard:
    """Raises ProtocolError where a worker says too much. Used by the I/O thread."""

    def __init__(
        self, newest: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._newest, self._clock = newest, clock
        # By worker: how many more it may send now, and when that was so.
        self._joins: dict[str, tuple[float, float]] = {}
        # By worker: the newest version, and how often it was pulled.
        self._pulls: dict[str, tuple[int, int]] = {}

    def check(self, worker: str, message: Message) -> None:
        """Look at a message before it is answered or kept."""
        match message:
            case Hello():
                self._count_join(worker)
                _check_hello(message)
            case Built():
                self._count_join(worker)
            case Pull():
                self._count_pull(worker)
                _check_text("cause of a pull", message.cause)

    def _count_join(self, worker: str) -> None:
        now = self._clock()
        left, since = self._joins.get(worker, (float(_MOST_JOINS_AT_ONCE), now))
        left = min(_MOST_JOINS_AT_ONCE, left + (now - since) * _JOINS_PER_SECOND) - 1
        if left < 0:
            raise ProtocolError("it says again and again that it joins")
        self._joins[worker] = left, now

    def _count_pull(self, worker: str) -> None:
        newest = self._newest()
        version, count = self._pulls.get(worker, (newest, 0))
        count = count + 1 if version == newest else 1
        if count > _MOST_PULLS_OF_A_VERSION:
            raise ProtocolError(f"it pulls version {newest} again and again")
        self._pulls[worker] = newest, count

    def forget(self, worker: str) -> None:
        """``worker`` is gone."""
        self._joins.pop(worker, None)
        self._pulls.pop(worker, None)


def _check_hello(hello: Hello) -> None:
    if len(hello.versions) > _MOST_VERSIONS:
        raise ProtocolError(f"{len(hello.versions)} versions in a Hello")
    for text in (hello.host, hello.neighbourhood, *hello.versions, *hello.versions.values()):
        _check_text("text of a Hello", text)


def _check_text(what: str, text: str) -> None:
    if len(text) > _LONGEST_TEXT or not text.isprintable():
        raise ProtocolError(f"a {what} is {text!r:.40}, which is too long or no plain text")
