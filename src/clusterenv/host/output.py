"""What workers print goes to the output of their host as well, and so where its launcher logs it.

A thread does it: whoever reads that output, a terminal or a link far away, may be slow.
"""

from __future__ import annotations

import os
import threading

from clusterenv.children import ChildProcess

_EVERY_S = 0.5
_MOST_BYTES = 65_536
"""That much of what is new in one log is copied at a time; of more, the end."""


class WorkerOutput(threading.Thread):
    """Copies what is new in the logs of the workers that it follows.

    Args:
        target: The descriptor to write to.
    """

    def __init__(self, target: int) -> None:
        super().__init__(name="output", daemon=True)
        self._target = target
        self._logs: list[_Log] = []
        self._closing = threading.Event()

    def follow(self, name: str, child: ChildProcess) -> None:
        """Copy what this worker prints, until it has ended."""
        self._logs.append(_Log(name, child))

    def run(self) -> None:
        """Copy now and then, until :meth:`close`."""
        try:
            while not self._closing.wait(_EVERY_S):
                self.copy()
            self.copy()
        except OSError:
            pass  # nobody reads it any more

    def copy(self) -> None:
        """Copy what is new."""
        for log in list(self._logs):
            # Before its log is read: what it prints afterwards is read the next time.
            is_over = log.is_over
            self._write(log.read(is_over))
            if is_over:
                self._logs.remove(log)
                log.close()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._target, data) :]

    def close(self, timeout_s: float) -> None:
        """Copy the rest, if that does not take longer."""
        self._closing.set()
        self.join(timeout_s)


class _Log:
    """How far the log of one worker has been read."""

    def __init__(self, name: str, child: ChildProcess) -> None:
        self._name, self._child = name, child
        # The worker's own is closed when it is replaced.
        self._fd, self._position = os.dup(child.log_fd), 0

    @property
    def is_over(self) -> bool:
        """Whether the worker has ended."""
        return self._child.exit_code() is not None

    def read(self, to_the_end: bool) -> bytes:
        """The lines that are new, each with the name of the worker.

        A line that is not complete waits for its end, unless nothing more will come.
        """
        prefix, size = f"{self._name}: ".encode(), os.fstat(self._fd).st_size
        left_out = max(0, size - self._position - _MOST_BYTES)
        self._position += left_out
        data = os.pread(self._fd, size - self._position, self._position)
        if not to_the_end and len(data) < _MOST_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        lines = [prefix + line for line in data.splitlines()]
        if left_out:
            lines.insert(0, prefix + f"({left_out} bytes of output are left out here)".encode())
        return b"".join(line + b"\n" for line in lines)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
