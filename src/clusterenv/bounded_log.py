"""A log file of bounded size, of which the beginning and the newest part are kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 4 << 20
"""Longer logs are cut."""
_FIRST_BYTES = 1 << 20
"""How much of its beginning stays."""
_NEWEST_BYTES = 1 << 20
"""How much of its end stays."""
_LONGEST_LINE = 1 << 16
"""Cuts are made between lines, unless lines are longer than this."""
_BLOCK_BYTES = 1 << 16
"""File systems remove whole blocks, of this size or a fraction of it."""
_NOTE_ROOM = 128
"""Room for a note before the first block that is removed."""
_COLLAPSE_RANGE = 8
"""A mode of Linux's ``fallocate``: remove these bytes, and move up what follows."""
_IS_BEING_CUT = b"[clusterenv: this log is being cut"
_NOTE = re.compile(rb"\[clusterenv: (\d+) bytes of output are left out here\] *\n?")


@dataclass(frozen=True)
class Cut:
    """A cut in a log: a note of ``note_bytes`` replaces what was from ``start`` to ``stop``."""

    start: int
    stop: int
    note_bytes: int

    def moved(self, position: int) -> tuple[int, int]:
        """Where a reader at ``position`` continues, and how many bytes it has missed."""
        if position <= self.start:
            return position, 0
        after_note = self.start + self.note_bytes
        missed = max(0, self.stop - position)
        return after_note + max(0, position - self.stop), missed


@dataclass(frozen=True)
class Note:
    """A log's own note of its cuts: so many bytes are left out between two positions."""

    start: int
    end: int
    num_left_out: int = 0

    def moved(self, position: int, before: Note) -> tuple[int, int]:
        """Like :meth:`Cut.moved`, if the note was ``before`` earlier."""
        if position <= self.start:
            return position, 0
        # In the order of printing, counted from the position of the note.
        after = before.end if before.num_left_out else self.start
        printed = max(0, position - after) + before.num_left_out
        missed = max(0, self.num_left_out - printed)
        return self.end + max(0, printed - self.num_left_out), missed


NO_NOTE = Note(MOST_BYTES, MOST_BYTES)
"""For a log that is too short to be cut."""


def read_note(fd: int) -> Note | None:
    """The note of a log's cuts, read from outside; None while it is being cut.

    What was read between two looks at the same note was not cut meanwhile.
    """
    if os.fstat(fd).st_size < _FIRST_BYTES:
        return NO_NOTE
    start = _start_of_note(fd)
    text = os.pread(fd, _NOTE_ROOM + 2 * _LONGEST_LINE, start)
    if text.startswith(_IS_BEING_CUT):
        return None
    found = _NOTE.match(text)
    return Note(start, start + found.end(), int(found[1])) if found else Note(start, start)


def _start_of_note(fd: int) -> int:
    """Where the note is: after the last line of the beginning, which never changes."""
    room = _FIRST_BYTES - _NOTE_ROOM
    first = os.pread(fd, _LONGEST_LINE, room - _LONGEST_LINE)
    return room - _LONGEST_LINE + first.rfind(b"\n") + 1 if b"\n" in first else room


class BoundedLog:
    """The descriptor of a log. Its holder must call :meth:`trim` regularly.

    The process that prints never waits: it appends to a file. Nothing of the newest part is lost,
    unless the file system cannot remove bytes from a file (tmpfs, NFS): there, what is printed in
    the microsecond between the last look and the cut is lost. A reader checks the note before and
    after it reads; see :func:`read_note`.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._start: int | None = None
        self._num_left_out, self._note_bytes = 0, 0
        # One thread may trim while another closes, after which the number may be another file's.
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | None) -> BoundedLog:
        """An empty log; without a path, an unnamed file."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666))
        import fcntl  # not on every platform: see platforms.py

        # An unnamed file cannot be left behind, not even after `kill -9` of the head.
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        # What is printed after a cut must come after the cut.
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        return cls(fd)

    def fileno(self) -> int:
        """The descriptor; ValueError once it is closed."""
        if self._fd is None:
            raise ValueError("the log is closed")
        return self._fd

    def duplicate(self) -> BoundedLog:
        """The same log, which can still be read after this one is closed."""
        return BoundedLog(os.dup(self.fileno()))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._fd is None

    @property
    def size(self) -> int:
        """How long it is now."""
        return os.fstat(self.fileno()).st_size

    def read(self, position: int, count: int) -> bytes:
        """The bytes at ``position``."""
        return os.pread(self.fileno(), count, position)

    def tail(self, count: int) -> bytes:
        """The end of the log; empty once it is closed."""
        with self._lock:
            if self._fd is None:
                return b""
            return self.read(max(0, self.size - count), count)

    def trim(self) -> Cut | None:
        """Cut the middle out if the log has become too long."""
        with self._lock:
            if self._fd is None or self.size <= MOST_BYTES:
                return None
            # A disk error here is no reason to end a run.
            with contextlib.suppress(OSError):
                return self._cut(self._fd)
        return None

    def _cut(self, fd: int) -> Cut:
        if self._start is None:
            self._start = _start_of_note(fd)
        start, size = self._start, self.size
        # The note is written before and after the removed blocks, up to the next line.
        first, last = _FIRST_BYTES, (size - _NEWEST_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        stop = last + self.read(last, _LONGEST_LINE).find(b"\n") + 1
        room = first - start
        self._num_left_out += stop - start - self._note_bytes
        self._note_bytes = room + stop - last
        note = f"[clusterenv: {self._num_left_out} bytes of output are left out here]".encode()
        note = note.ljust(self._note_bytes - 1) + b"\n"
        # This descriptor can only append.
        anywhere = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        try:
            _write_at(anywhere, start, _IS_BEING_CUT.ljust(room))
            _write_at(anywhere, last, note[room:])
            _take_out(anywhere, first, last, size)
            _write_at(anywhere, start, note[:room])
        finally:
            os.close(anywhere)
        return Cut(start, stop, self._note_bytes)

    def close(self) -> None:
        """Close the descriptor; closing twice does no harm."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)


def _take_out(fd: int, start: int, stop: int, size: int) -> None:
    """Remove these bytes from a file that others append to; it had ``size`` a while ago."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    offset, length = ctypes.c_int64(start), ctypes.c_int64(stop - start)
    if fallocate is not None and not fallocate(fd, _COLLAPSE_RANGE, offset, length):
        return
    end = _write_at(fd, start, os.pread(fd, size - stop, stop))
    # As little as possible between here and the cut.
    while more := os.pread(fd, _LONGEST_LINE, stop + end - start):
        end = _write_at(fd, end, more)
    os.ftruncate(fd, end)


def _write_at(fd: int, position: int, data: bytes) -> int:
    """Write all of it; returns where it ends."""
    while data:
        written = os.pwrite(fd, data, position)
        position, data = position + written, data[written:]
    return position
