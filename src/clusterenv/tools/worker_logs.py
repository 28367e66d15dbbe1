"""The standard output of a worker on this machine, read from outside."""

from __future__ import annotations

import os
import stat
import time

from clusterenv.bounded_log import NO_NOTE, read_note

_MOST_BYTES = 1 << 23
_MOST_TRIES = 100
_A_CUT_TAKES_S = 0.01
_TAIL_BYTES = 1 << 16


def tail_of(pid: int, num_lines: int) -> list[str]:
    """The last lines that a process has printed; OSError or ValueError if they cannot be read."""
    fd = _open(pid)
    try:
        start = max(0, os.fstat(fd).st_size - _TAIL_BYTES)
        text = os.pread(fd, _TAIL_BYTES, start).decode(errors="replace")
    finally:
        os.close(fd)
    # The first of them may be incomplete.
    return text.splitlines()[1 if start else 0 :][-num_lines:]


def _open(pid: int, number: int = 1) -> int:
    fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("its standard output is not a file")
    return fd


class WorkerLog:
    """Reads what a process has printed, if its standard output is a file.

    Args:
        pid: The process, which must belong to the same user.
        prefix: What to put before each line.
        fd: The number of its descriptor to read.
    """

    def __init__(self, pid: int, prefix: str, fd: int = 1) -> None:
        self._prefix, self._position, self._rest, self._note = prefix, 0, b"", NO_NOTE
        # The file itself, which can still be read after the process has ended.
        self._fd = _open(pid, fd)

    def read(self, to_the_end: bool) -> list[str]:
        """The new lines; an incomplete one only if nothing more will come."""
        data, missed = self._take()
        lines = [f"{self._prefix}[clusterenv: {missed} bytes of output are left out here]\n"]
        end = len(data) if to_the_end else data.rfind(b"\n") + 1
        self._rest = data[end:]
        text = data[:end].decode(errors="replace")
        lines += [f"{self._prefix}{_bare(line)}\n" for line in text.splitlines()]
        return lines if missed else lines[1:]

    def _take(self) -> tuple[bytes, int]:
        """What is new, and how many bytes before it can no longer be read."""
        for _ in range(_MOST_TRIES):
            note = read_note(self._fd)
            if note is not None:
                position, missed = note.moved(self._position, self._note)
                data = os.pread(self._fd, _MOST_BYTES, position)
                if read_note(self._fd) == note:
                    rest = b"" if missed else self._rest
                    self._position, self._note = position + len(data), note
                    return rest + data, missed
            # It is being cut.
            time.sleep(_A_CUT_TAKES_S)
        return self._rest, 0


def _bare(line: str) -> str:
    """Strip the padding of notes."""
    return line.rstrip(" ") if line.startswith("[clusterenv: ") else line
