"""Messages and calls between a host and one worker, in shared memory.

Only workers that the host started have it: they inherit the descriptors.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from functools import cache

from clusterenv.memory.answer_flags import MAY_SPIN, MOST_PARTS, barrier
from clusterenv.memory.messages import PartCall, StepCall
from clusterenv.memory.part_times import PartTimes
from clusterenv.memory.pulse import Pulse
from clusterenv.memory.segments import create, map_memory

_CACHE_LINE = 64
_LENGTH_BYTES = 8
_SKIP = -1
_NO_MORE = (1 << 63) - 1


class Ring:
    """A queue of byte strings for one writer and one reader, in shared memory.

    Positions only grow; their difference is what is in flight.
    """

    CAPACITY = 1 << 18
    SIZE = 2 * _CACHE_LINE + CAPACITY

    def __init__(self, memory: memoryview) -> None:
        self._positions = memory[: 2 * _CACHE_LINE].cast("q")
        self._bytes = memory[2 * _CACHE_LINE : self.SIZE]
        self._lengths = self._bytes.cast("q")
        self._written, self._read = 0, _CACHE_LINE // 8

    def push(self, message: bytes, keep_free: int = 0) -> bool:
        """Append ``message``; False if it does not fit, or would leave less than ``keep_free``."""
        positions = self._positions
        start = positions[self._written]
        needed = _LENGTH_BYTES + -(-len(message) // 8) * 8
        offset = start % self.CAPACITY
        skip = self.CAPACITY - offset if offset + needed > self.CAPACITY else 0
        if start + skip + needed + keep_free - positions[self._read] > self.CAPACITY:
            return False
        if skip:
            self._lengths[offset // 8] = _SKIP
            start, offset = start + skip, 0
        self._lengths[offset // 8] = len(message)
        data = offset + _LENGTH_BYTES
        self._bytes[data : data + len(message)] = message
        positions[self._written] = start + needed
        return True

    def pop(self) -> bytes | None:
        """The oldest message, or None."""
        positions = self._positions
        start = positions[self._read]
        if start == positions[self._written]:
            return None
        offset = start % self.CAPACITY
        length = self._lengths[offset // 8]
        if length == _SKIP:
            start, offset = start + self.CAPACITY - offset, 0
            length = self._lengths[0]
        data = offset + _LENGTH_BYTES
        message = bytes(self._bytes[data : data + length])
        positions[self._read] = start + _LENGTH_BYTES + -(-length // 8) * 8
        return message

    def is_empty(self) -> bool:
        """Whether there is nothing to pop."""
        return bool(self._positions[self._written] == self._positions[self._read])


class Mailbox:
    """Two rings, calls to step, and a note of the current slot, for a host and one worker.

    A call is a request that a loop around steps repeats all the time, in a few words, without a
    message to write and read. There is one call for all slots; calls for parts may queue up.
    """

    SIZE = mmap.PAGESIZE + 2 * Ring.SIZE
    NO_SLOT = -1
    _RELEASED_BY_HOST = _CACHE_LINE // 8
    _CALLED = 2 * _CACHE_LINE // 8
    _DTYPE = _CALLED + 1
    _PARTS_CALLED = _CALLED + 2
    _TAKEN = 3 * _CACHE_LINE // 8
    _ASLEEP = _TAKEN + 1
    _PARTS_TAKEN = _TAKEN + 2
    _PARTS = 4 * _CACHE_LINE // 8
    _PART_WORDS = 4
    _RELEASED_BY_WORKER = _PARTS + MOST_PARTS * _PART_WORDS
    _CANCELLED = _RELEASED_BY_WORKER + _CACHE_LINE // 8
    _TIMES = _CANCELLED + _CACHE_LINE // 8
    _PULSE = _TIMES + 4 * _CACHE_LINE // 8

    def __init__(self, fd: int) -> None:
        memory = map_memory(fd, self.SIZE)
        self._notes = memory[: mmap.PAGESIZE].cast("q")
        self.times = PartTimes(self._notes[self._TIMES : self._TIMES + PartTimes.SIZE])
        self.pulse = Pulse(self._notes[self._PULSE : self._PULSE + Pulse.SIZE])
        self.to_worker = Ring(memory[mmap.PAGESIZE :])
        self.to_host = Ring(memory[mmap.PAGESIZE + Ring.SIZE :])

    @staticmethod
    def create() -> int:
        """A descriptor for a new mailbox; OSError if there is no memory for it."""
        return create("mailbox", Mailbox.SIZE)

    @property
    def released_by_host(self) -> memoryview:
        """How many of the worker's frames the host has released."""
        return self._notes[self._RELEASED_BY_HOST :]

    @property
    def released_by_worker(self) -> memoryview:
        """How many of the host's frames the worker has released."""
        return self._notes[self._RELEASED_BY_WORKER :]

    @property
    def cancelled_up_to(self) -> int:
        """Requests up to this one are no longer wanted."""
        return int(self._notes[self._CANCELLED])

    def cancel_up_to(self, request: int) -> None:
        """Let the worker neither begin nor finish requests up to this one."""
        self._notes[self._CANCELLED] = request

    def cancel_all(self) -> None:
        """The same for all requests, including later ones."""
        self._notes[self._CANCELLED] = _NO_MORE

    def can_call(self) -> bool:
        """Whether the worker has seen the last call and all messages."""
        notes = self._notes
        return notes[self._CALLED] == notes[self._TAKEN] and self.to_worker.is_empty()

    @classmethod
    def call_all(cls, mailboxes: Sequence[Mailbox], request: int, dtype: str) -> bool:
        """Have all these workers step all their slots with the actions in their rows.

        Returns:
            Whether one of them ``is_asleep``, and so does not see it.
        """
        number = _number_of(dtype)
        for mailbox in mailboxes:
            notes = mailbox._notes
            notes[cls._DTYPE] = number
            notes[cls._CALLED] = request
        barrier()
        for mailbox in mailboxes:  # noqa: SIM110 (a generator costs more)
            if mailbox._notes[cls._ASLEEP]:
                return True
        return False

    def can_call_part(self) -> bool:
        """Whether another call for a part may queue up, and the worker has seen all messages."""
        notes = self._notes
        if not self.to_worker.is_empty():
            return False
        waiting = notes[self._PARTS_CALLED] - notes[self._PARTS_TAKEN]
        return bool(
            0 < waiting < MOST_PARTS or (waiting == 0 and notes[self._CALLED] == notes[self._TAKEN])
        )

    def call_part(self, request: int, dtype: str, first: int, count: int) -> int:
        """Have the worker step ``count`` of its slots likewise; returns the call's number."""
        notes = self._notes
        called: int = notes[self._PARTS_CALLED]
        number = called % MOST_PARTS
        at = self._PARTS + number * self._PART_WORDS
        notes[at], notes[at + 1] = request, _number_of(dtype)
        notes[at + 2], notes[at + 3] = first, count
        notes[self._PARTS_CALLED] = called + 1
        notes[self._CALLED] = request
        return number

    def take_call(self) -> StepCall | PartCall | None:
        """The oldest call that has not been taken yet."""
        notes = self._notes
        if notes[self._CALLED] == notes[self._TAKEN]:
            return None
        if notes[self._PARTS_CALLED] != notes[self._PARTS_TAKEN]:
            return self._take_part()
        return self._take_step()

    def _take_step(self) -> StepCall:
        notes = self._notes
        request = notes[self._TAKEN] = notes[self._CALLED]
        return StepCall(request, _dtype_of(notes[self._DTYPE]))

    def _take_part(self) -> PartCall:
        notes = self._notes
        taken: int = notes[self._PARTS_TAKEN]
        number = taken % MOST_PARTS
        at = self._PARTS + number * self._PART_WORDS
        request, dtype = notes[at], _dtype_of(notes[at + 1])
        call = PartCall(request, dtype, notes[at + 2], notes[at + 3], number)
        notes[self._PARTS_TAKEN] = taken + 1
        notes[self._TAKEN] = request
        return call

    def wait_for_call(self, seconds: float) -> StepCall | PartCall | None:
        """Spin, yielding the core each time, for a call only.

        None after ``seconds``, or if there is any other mail.
        """
        if not MAY_SPIN:
            return None
        notes, is_empty, deadline = self._notes, self.to_worker.is_empty, 0.0
        while notes[self._CALLED] == notes[self._TAKEN]:
            now = time.perf_counter()
            deadline = deadline or now + seconds
            if now > deadline or not is_empty():
                return None
            os.sched_yield()
        is_part = notes[self._PARTS_CALLED] != notes[self._PARTS_TAKEN]
        return self._take_part() if is_part else self._take_step()

    def has_mail(self) -> bool:
        """Whether there is something for the worker."""
        notes = self._notes
        return notes[self._CALLED] != notes[self._TAKEN] or not self.to_worker.is_empty()

    def make_way(self) -> None:
        """Let the host have this core, unless it has had it already and asks for more."""
        # Yielding for nothing weakens our claim to the core when the host wakes up beside us.
        if not self.has_mail():
            os.sched_yield()

    def wait_spinning(self, seconds: float) -> bool:
        """Spin for at most ``seconds``, yielding the core each time; whether there is mail."""
        if self.has_mail():
            return True
        if not MAY_SPIN:
            return False
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if self.has_mail():
                return True
            os.sched_yield()
        return False

    @property
    def is_asleep(self) -> bool:
        """Whether the worker would not see a call without its doorbell."""
        return bool(self._notes[self._ASLEEP])

    def fall_asleep(self) -> bool:
        """Note that the worker will sleep until its doorbell rings; False if there is mail."""
        self._notes[self._ASLEEP] = 1
        # Either the worker sees the call, or the caller sees that it is asleep.
        barrier()
        return not self.has_mail()

    def wake_up(self) -> None:
        """Note that the worker is looking again."""
        self._notes[self._ASLEEP] = 0

    @property
    def notes(self) -> memoryview:
        """``notes[0] - 1`` is the slot whose env is running, so that a killer can be named."""
        return self._notes

    @property
    def current_slot(self) -> int:
        """The slot whose env was running last, or NO_SLOT."""
        return int(self._notes[0]) - 1


@cache
def _number_of(dtype: str) -> int:
    """The name of a dtype as one word; the names of numbers are short."""
    return int.from_bytes(dtype.encode().ljust(8), "little")


@cache
def _dtype_of(number: int) -> str:
    return number.to_bytes(8, "little").decode().rstrip()
