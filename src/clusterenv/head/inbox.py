"""What has arrived for the user's thread: through the I/O thread, or straight into mailboxes."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError
from clusterenv.wire.bell import Bell
from clusterenv.wire.codec import decode
from clusterenv.wire.frame_buffer import FrameReader
from clusterenv.wire.marks import MAY_SPIN, Marks
from clusterenv.wire.messages import InFrameBuffer
from clusterenv.wire.shared_memory import Mailbox

SPIN_S = 2e-3
# What may wait of one worker until the user's thread comes to look at it.
_MOST_WAITING_BYTES = 1 << 31
_MESSAGE_BYTES = 1000

Arrival = tuple[str, Any, list[Buffer]]


def never() -> bool:
    """Nothing but an arrival ends the waiting."""
    return False


class Inbox:
    """One bell for everything: the I/O thread rings it, and so do workers that share memory."""

    def __init__(self, may_spin: bool = False) -> None:
        self.may_spin = may_spin and MAY_SPIN
        """Look again and again before sleeping: only where workers leave a core free."""
        self.bell = Bell(hands_over=True)
        self.marks: Marks | None = None
        """Where workers that share memory see whether to ring."""
        self._mailboxes: dict[str, Mailbox] = {}
        self._readers: dict[str, FrameReader] = {}
        self.arrivals: deque[tuple[Arrival, int]] = deque()
        """What other threads have left here, each with its size."""
        self._waiting_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._poller = select.poll()
        self._poller.register(self.bell.fd, select.POLLIN)

    def put(
        self, worker: str, message: Any, frames: list[Buffer] | None = None, size: int = 0
    ) -> None:
        """Called by other threads; ProtocolError if too much of this worker waits already."""
        if size:
            size += _MESSAGE_BYTES
            with self._lock:
                if self._waiting_bytes[worker] + size > _MOST_WAITING_BYTES:
                    raise ProtocolError("it sends more than it is asked for")
                self._waiting_bytes[worker] += size
        self.arrivals.append(((worker, message, frames or []), size))
        self.bell.ring()

    def watch(self, worker: str, mailbox: Mailbox, frames_fd: int) -> None:
        """Look into this mailbox too."""
        self._mailboxes[worker] = mailbox
        self._readers[worker] = FrameReader(frames_fd, mailbox.frames_released)

    def forget(self, worker: str) -> None:
        """Do not look into this mailbox any more."""
        self._mailboxes.pop(worker, None)
        self._readers.pop(worker, None)
        with self._lock:
            # What of it has not been taken yet is counted off later: less than nothing is no harm.
            self._waiting_bytes.pop(worker, None)

    def take(self) -> Iterator[Arrival]:
        """Everything that is here now."""
        for worker, mailbox in list(self._mailboxes.items()):
            while (header := mailbox.to_head.pop()) is not None:
                yield worker, *self._open(worker, header)
        while self.arrivals:
            arrival, size = self.arrivals.popleft()
            if size:
                with self._lock:
                    self._waiting_bytes[arrival[0]] -= size
            yield arrival

    def _open(self, worker: str, header: bytes) -> tuple[Any, list[Buffer]]:
        """The message and its frames; a ProtocolError in its place, as from the I/O thread."""
        try:
            message, frames = decode(header), []
            if isinstance(message, InFrameBuffer):
                frames = self._readers[worker].read(message)
                message = decode(message.header)
        except Exception as error:
            return ProtocolError.of(error), []
        return message, frames

    def is_empty(self) -> bool:
        """Whether nothing is here now."""
        if self.arrivals:
            return False
        for mailbox in self._mailboxes.values():  # noqa: SIM110 (a generator costs more)
            if not mailbox.to_head.is_empty():
                return False
        return True

    def wait(self, timeout_s: float, is_done: Callable[[], bool] = never) -> bool:
        """Wait until something is here, the bell rings or ``is_done``; False if time is up."""
        if self.may_spin and self.spin_until(is_done):
            return True
        if self.marks is not None:
            self.marks.fall_asleep()
        try:
            # Whoever answered while it was awake did not ring.
            if is_done() or not self.is_empty():
                return True
            return timeout_s > 0 and self.wait_for_bell(timeout_s)
        finally:
            if self.marks is not None:
                self.marks.wake_up()

    def wait_for_bell(self, timeout_s: float) -> bool:
        """Sleep until the bell rings; False if time is up."""
        if not self._poller.poll(timeout_s * 1000 + 1):
            return False
        self.bell.clear()
        return True

    def spin_until(self, is_done: Callable[[], bool]) -> bool:
        """Look again and again, yielding the core; False if it takes long."""
        deadline = time.perf_counter() + SPIN_S
        while time.perf_counter() < deadline:
            if is_done() or not self.is_empty():
                return True
            os.sched_yield()
        return False

    def close(self) -> None:
        """Give the bell back."""
        self._mailboxes.clear()
        self._readers.clear()
        self.bell.close()
