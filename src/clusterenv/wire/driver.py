"""Whoever waits drives the socket: the user's thread while it waits, another while it computes.

A hop between threads costs more than a message, so the user's thread reads the socket itself. While
it is away, joins and pulls must not wait for it: after a moment this thread takes over, and steps
aside when the user's thread comes back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from clusterenv.arrays import Buffer
from clusterenv.bell import Bell
from clusterenv.errors import ProtocolError
from clusterenv.interrupts import Uninterrupted
from clusterenv.protocol.message import Message, encode
from clusterenv.stopwatch import WAIT, Stopwatch
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.chunks import join
from clusterenv.wire.head_socket import HeadSocket
from clusterenv.wire.messages import decode_from_host

_log = logging.getLogger("clusterenv")
# On top of what was asked for.
_MAX_MESSAGE_BYTES = 1 << 30
# A policy's outputs beside the rows in which it acted; and fragments that were asked for ahead.
_OUTPUTS_PER_ROW, _MOST_AHEAD = 1, 8
# How long joins and pulls may wait after the user's thread has left.
_AWAY_S = 0.01
_LONGEST_POLL_S = 1.0
# How much of one host's data may wait until the user's thread reads it; each message costs more
# than its bytes.
_MOST_WAITING_BYTES = 1 << 31
_BYTES_PER_MESSAGE = 1_000
_MOST_WAITING_MESSAGES = 20_000

Arrival = tuple[str, Any, list[Buffer]]
"""A host, its message, and the frames."""


class Driver(threading.Thread):
    """Sends and receives; messages go to ``answer`` first, then to :attr:`arrivals`.

    Args:
        socket: The head's socket.
        answer: Called with (host, message) under the lock; True if nobody else needs the message.
        on_disconnect: Called likewise with a host whose connection broke or was ended.
        ledger: Where bytes are counted.
    """

    def __init__(
        self,
        socket: HeadSocket,
        answer: Callable[[str, Any], bool],
        on_disconnect: Callable[[str], None],
        ledger: Ledger,
    ) -> None:
        super().__init__(name="clusterenv io", daemon=True)
        self._socket, self._answer, self._on_disconnect = socket, answer, on_disconnect
        self._ledger = ledger
        self.arrivals: deque[Arrival] = deque()
        """For the user's thread."""
        # By host: the number of messages, and of bytes.
        self._waiting: dict[str, tuple[int, int]] = {}
        self.row_bytes = 0
        """How many bytes the row of one slot takes, once known."""
        self._asked_bytes = 0
        # Reentrant, because answering may involve sending.
        self._lock = threading.RLock()
        self._is_user_here, self._left_at = False, time.monotonic()
        self._closing = False
        self.stopwatch = Stopwatch()
        """Counts how long the user's thread waits here."""
        self._wake = Bell()
        self._uninterrupted = Uninterrupted(self._wake.ring)
        self._poller = zmq.Poller()
        socket.register(self._poller)
        self._poller.register(self._wake.fd, zmq.POLLIN)

    def __enter__(self) -> Driver:
        """Let the user's thread drive: no other thread drives until it leaves, and Ctrl-C takes
        effect only then, since half a message would cost its host."""
        self._uninterrupted.begin()
        self._is_user_here = True
        if not self._lock.acquire(blocking=False):
            self._wake.ring()
            self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_user_here, self._left_at = False, time.monotonic()
        self._lock.release()
        self._uninterrupted.end()

    def send(self, host: str, message: Message, frames: Sequence[Buffer] = ()) -> bool:
        """Send, without waiting; False if the host is not connected. Only while driving."""
        parts = [encode(message), *frames]
        if not self._socket.send(host, parts):
            return False
        self._ledger.count(type(message).__name__, sum(map(len, parts)))
        return True

    def expect(self, num_rows: int) -> None:
        """Note that a host was asked for this many rows at once, and so may send as much."""
        num_bytes = num_rows * self.row_bytes * (1 + _OUTPUTS_PER_ROW)
        self._asked_bytes = max(self._asked_bytes, num_bytes)

    def drive(self, timeout_s: float) -> None:
        """Wait for messages, and take them in. Only inside ``with``."""
        watch = self.stopwatch
        before = watch.begin(WAIT) if watch.is_on else ""
        self._poller.poll(_milliseconds(timeout_s))
        if before:
            watch.begin(before)
        self._take_all()

    def wake(self) -> None:
        """End a wait; may be called from any thread."""
        self._wake.ring()

    def put(self, host: str, message: Any) -> None:
        """Leave something for the user's thread; may be called from any thread."""
        self.arrivals.append((host, message, []))
        self._wake.ring()

    def run(self) -> None:
        """Drive while the user's thread is away, until :meth:`close`."""
        while not self._closing:
            if self._is_user_here or time.monotonic() - self._left_at < _AWAY_S:
                time.sleep(_AWAY_S)
                continue
            with self._lock:
                if not self._is_user_here and not self._closing:
                    self._poller.poll(_milliseconds(_LONGEST_POLL_S))
                    self._take_all()

    def _take_all(self) -> None:
        self._wake.clear()
        self._socket.answer_handshakes()
        for host in self._socket.disconnected():
            self._on_disconnect(host)
        for host, chunks in self._socket.receive():
            try:
                self._take(host, join(chunks, _MAX_MESSAGE_BYTES + self._asked_bytes))
            except Exception as error:  # whatever a host sends must not end the run
                _log.debug("%s is cut off", host, exc_info=True)
                self._socket.revoke(host)
                self._on_disconnect(host)
                self.arrivals.append((host, ProtocolError.of(error), []))

    def _take(self, host: str, frames: list[Buffer]) -> None:
        message, size = decode_from_host(frames[0]), sum(map(len, frames))
        self._ledger.count(type(message).__name__, size)
        if self._answer(host, message):
            return
        count, num_bytes = self._waiting.get(host, (0, 0))
        count, num_bytes = count + 1, num_bytes + size + _BYTES_PER_MESSAGE
        most_bytes = _MOST_WAITING_BYTES + _MOST_AHEAD * self._asked_bytes
        if count > _MOST_WAITING_MESSAGES or num_bytes > most_bytes:
            raise ProtocolError("it sends more than it is asked for")
        self._waiting[host] = count, num_bytes
        self.arrivals.append((host, message, frames[1:]))

    def take_arrivals(self) -> list[Arrival]:
        """What has come for the user's thread."""
        arrivals = []
        while self.arrivals:
            arrivals.append(self.arrivals.popleft())
        self._waiting.clear()
        return arrivals

    def close(self) -> None:
        """Send what is queued, end the thread, close the socket."""
        self._closing = True
        self._wake.ring()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(5.0)
        with self._lock:
            self._socket.close()
            self._wake.close()


def _milliseconds(timeout_s: float) -> int:
    """Rounded up: a wait of less than one millisecond must not become a busy loop."""
    return math.ceil(min(timeout_s, _LONGEST_POLL_S) * 1000)
