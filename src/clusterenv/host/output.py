"""Keeps the logs of workers short. If the host is a process of its own, it also copies what workers
print to its own output, and so to its launcher's log.

A thread does this: the reader of that output, a terminal or a distant link, may be slow, and
workers print whether anybody drives their host or not.
"""

from __future__ import annotations

import os
import threading
import time

from clusterenv.children import ChildProcess

_EVERY_S = 0.5
_SOON_S = 0.05
"""After a cut: a worker that prints this much will soon need another."""
_MOST_BYTES = 65_536
"""How much new output of one log is copied at a time; if there is more, its end."""
_LEAST_BYTES = 4_096
"""Less than this is not worth a note of what was left out."""
_FREELY_BYTES = 1 << 20
_BYTES_PER_S = 1 << 10
"""How much of one worker's output is copied freely, and at what rate after that: nobody may be
trimming the file at the other end of the host's output."""


class WorkerOutput(threading.Thread):
    """Keeps the logs of workers short, and copies what is new in them.

    Args:
        target: The descriptor to copy to; None to copy nothing.
    """

    def __init__(self, target: int | None = None) -> None:
        super().__init__(name="clusterenv output", daemon=True)
        self._target = target
        self._logs: list[_FollowedLog] = []
        self._closing = threading.Event()

    def follow(self, name: str, child: ChildProcess) -> None:
        """Follow this worker's output until it has ended."""
        self._logs.append(_FollowedLog(name, child))

    def run(self) -> None:
        """Look at regular intervals until :meth:`close`."""
        pause_s = _EVERY_S
        while not self._closing.wait(pause_s):
            pause_s = _SOON_S if self.look() else _EVERY_S
        self.look()

    def look(self) -> bool:
        """Copy what is new, and cut what is too long; returns whether anything was cut."""
        was_cut = False
        for log in list(self._logs):
            # Asked before its log is read, so that nothing it prints last is missed.
            is_over = log.is_over
            self._copy(log, is_over)
            was_cut |= log.trim()
            if is_over:
                self._logs.remove(log)
                log.close()
        return was_cut

    def _copy(self, log: _FollowedLog, is_over: bool) -> None:
        target = self._target
        if target is None:
            return
        data = log.read(is_over, time.monotonic())
        try:
            while data:
                data = data[os.write(target, data) :]
        except OSError:
            self._target = None  # nobody reads it any more

    def close(self, timeout_s: float) -> None:
        """Copy the rest, unless that takes longer than ``timeout_s``."""
        self._closing.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout_s)


class _FollowedLog:
    """How far the log of one worker has been read."""

    def __init__(self, name: str, child: ChildProcess) -> None:
        self._name, self._child = name, child
        # The worker's own descriptor is closed when it is replaced.
        self._log, self._position, self._missed = child.log.duplicate(), 0, 0
        self._allowance, self._refilled_at = float(_FREELY_BYTES), time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the worker has ended."""
        return self._child.exit_code() is not None

    def read(self, to_the_end: bool, now: float) -> bytes:
        """The new lines, each with the name of the worker.

        An incomplete line waits for its end, unless nothing more will come.
        """
        most = self._may_read(to_the_end, now)
        if most < _LEAST_BYTES:
            return b""
        size = self._log.size
        skipped = max(0, size - self._position - most)
        self._position += skipped
        self._missed += skipped
        data = self._log.read(self._position, size - self._position)
        if not to_the_end and len(data) < most:
            data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        self._allowance -= len(data)
        return self._with_name(data)

    def _may_read(self, to_the_end: bool, now: float) -> int:
        refill = (now - self._refilled_at) * _BYTES_PER_S
        self._allowance = min(float(_FREELY_BYTES), self._allowance + refill)
        self._refilled_at = now
        allowance = max(self._allowance, _LEAST_BYTES) if to_the_end else self._allowance
        return min(_MOST_BYTES, int(allowance))

    def _with_name(self, data: bytes) -> bytes:
        prefix = f"{self._name}: ".encode()
        lines = [prefix + line for line in data.splitlines()]
        if self._missed and lines:
            lines.insert(0, prefix + f"({self._missed} bytes of output are left out here)".encode())
            self._missed = 0
        return b"".join(line + b"\n" for line in lines)

    def trim(self) -> bool:
        """Cut the log if it has become too long; returns whether it was."""
        cut = self._log.trim()
        if cut is None:
            return False
        self._position, missed = cut.moved(self._position)
        self._missed += missed
        return True

    def close(self) -> None:
        """Close the descriptor."""
        self._log.close()
