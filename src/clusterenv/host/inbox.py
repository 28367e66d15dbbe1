"""What workers have said, and waiting for it: one bell for all of them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterenv.arrays import Buffer
from clusterenv.bell import Bell
from clusterenv.errors import ProtocolError
from clusterenv.memory.answer_flags import MAY_SPIN, AnswerFlags
from clusterenv.memory.line import HostEnd
from clusterenv.memory.mailbox import Ring
from clusterenv.stopwatch import WAIT, Stopwatch

SPIN_S = 2e-3

Arrival = tuple[int, Any, list[Buffer], int]
"""The worker's index, its message, the frames, and the number to release them by."""


def never() -> bool:
    """Let only an arrival end the wait."""
    return False


class Inbox:
    """The mailboxes of all workers of a host."""

    def __init__(self, may_spin: bool) -> None:
        self.may_spin = may_spin and MAY_SPIN
        """Whether to spin before sleeping: only if the workers leave a core free."""
        self.bell = Bell(hands_over=True)
        self.flags: AnswerFlags | None = None
        """Tells workers whether to ring."""
        self.was_woken = False
        """Whether another thread wants attention; see :meth:`wake`."""
        self.stopwatch = Stopwatch()
        """Counts how long the user's thread waits here, if it drives the host."""
        self._lines: dict[int, HostEnd] = {}
        self._rings: dict[int, Ring] = {}
        self._poller = select.poll()
        self._poller.register(self.bell.fd, select.POLLIN)

    def watch(self, index: int, line: HostEnd) -> None:
        """Read this worker's mailbox, and no longer its predecessor's."""
        self._lines[index] = line
        self._rings[index] = line.from_worker

    def forget(self, index: int) -> None:
        """Stop reading this worker's mailbox."""
        self._lines.pop(index, None)
        self._rings.pop(index, None)

    def take(self) -> Iterator[Arrival]:
        """Everything that is here now, with a ProtocolError in place of a malformed message."""
        for index, line in list(self._lines.items()):
            # Stop once the worker is replaced: messages of a lost one are of no use.
            while self._lines.get(index) is line:
                try:
                    received = line.receive()
                except Exception as error:
                    yield index, ProtocolError.of(error), [], 0
                    break
                if received is None:
                    break
                yield index, *received

    def is_empty(self) -> bool:
        """Whether nothing is here now."""
        if self.was_woken:
            return False
        for ring in self._rings.values():  # noqa: SIM110 (a generator costs more)
            if not ring.is_empty():
                return False
        return True

    def wake(self) -> None:
        """End a wait; may be called from any thread."""
        self.was_woken = True
        self.bell.ring()

    def fall_asleep(self, is_done: Callable[[], bool] = never) -> bool:
        """Have workers ring until :meth:`wake_up`; False if something is here already."""
        if self.flags is not None:
            self.flags.fall_asleep()
        # Workers that answered while we were awake did not ring.
        return not is_done() and self.is_empty()

    def wake_up(self) -> None:
        """Let workers stop ringing."""
        if self.flags is not None:
            self.flags.wake_up()

    def wait(self, timeout_s: float, is_done: Callable[[], bool] = never) -> bool:
        """Wait until something is here, the bell rings or ``is_done``; False if time is up."""
        if self.may_spin and self.spin_until(is_done):
            return True
        try:
            if not self.fall_asleep(is_done):
                return True
            return timeout_s > 0 and self.wait_for_bell(timeout_s)
        finally:
            self.wake_up()

    def wait_for_bell(self, timeout_s: float) -> bool:
        """Sleep until the bell rings; False if time is up."""
        watch = self.stopwatch
        before = watch.begin(WAIT) if watch.is_on else ""
        is_rung = bool(self._poller.poll(timeout_s * 1000 + 1))
        if before:
            watch.begin(before)
        if is_rung:
            self.bell.clear()
        return is_rung

    def spin_until(self, is_done: Callable[[], bool]) -> bool:
        """Spin, yielding the core each time; False if it takes long."""
        watch = self.stopwatch
        before = watch.begin(WAIT) if watch.is_on else ""
        deadline, is_over = time.perf_counter() + SPIN_S, False
        while not is_over and time.perf_counter() < deadline:
            is_over = is_done() or not self.is_empty()
            if not is_over:
                os.sched_yield()
        if before:
            watch.begin(before)
        return is_over

    def close(self) -> None:
        """Release the bell."""
        self._lines.clear()
        self._rings.clear()
        self.bell.close()
