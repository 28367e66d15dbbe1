"""Everything that a host and one worker share: a mailbox, frames in both directions, bells."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from clusterenv import bell
from clusterenv.arrays import Buffer
from clusterenv.bell import Bell
from clusterenv.memory.frames import FrameReader, FrameWriter, InFrames
from clusterenv.memory.mailbox import Mailbox, Ring
from clusterenv.memory.messages import (
    PartCall,
    StepCall,
    decode_from_host,
    decode_from_worker,
)
from clusterenv.memory.part_times import PartTimes
from clusterenv.memory.pulse import Pulse
from clusterenv.memory.segments import create
from clusterenv.protocol.message import Message, encode

# Longer than the head takes between two steps, and than one worker waits for another.
SPIN_S = 2e-3
# Larger headers go into the frame buffer, so that a ring has room for many.
_LARGE_BYTES = 1 << 13


def _nothing() -> None:
    pass


class Descriptors(msgspec.Struct, frozen=True):
    """What a worker inherits."""

    mailbox: int
    from_worker: int
    to_worker: int
    doorbell: int
    host_bell: int
    rows: int
    weights: int
    evaluation_weights: int

    def duplicated(self) -> Descriptors:
        """The same with descriptor numbers of their own, for a thread; OSError if none are left."""
        numbers: list[int] = []
        try:
            numbers.extend(os.dup(fd) for fd in msgspec.structs.astuple(self))
        except OSError:
            for number in numbers:
                os.close(number)
            raise
        return Descriptors(*numbers)

    def close(self) -> None:
        """Close them."""
        for fd in msgspec.structs.astuple(self):
            os.close(fd)


class HostEnd:
    """The host's end of a line."""

    def __init__(self, host_bell: Bell, rows: int, weights: int, evaluation_weights: int) -> None:
        self._fds: list[int] = []
        self.doorbell = Bell()
        try:
            mailbox, inbound, outbound = (
                self._keep(Mailbox.create()),
                self._keep(create("frames")),
                self._keep(create("frames")),
            )
            self.mailbox = Mailbox(mailbox)
        except OSError:
            self.close()
            raise
        self._inbound, self._outbound = self.mailbox.to_host, self.mailbox.to_worker
        self._reader = FrameReader(inbound, self.mailbox.released_by_host)
        self._writer = FrameWriter(outbound, self.mailbox.released_by_worker)
        self.descriptors = Descriptors(
            mailbox=mailbox,
            from_worker=inbound,
            to_worker=outbound,
            doorbell=self.doorbell.fd,
            host_bell=host_bell.ring_fd,
            rows=rows,
            weights=weights,
            evaluation_weights=evaluation_weights,
        )
        # Messages that found no room in the ring.
        self._waiting: deque[bytes] = deque()

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def send(self, message: Message) -> None:
        """Send; what finds no room goes out with a later :meth:`flush`."""
        self._waiting.append(self._packed(encode(message)))
        self.flush()

    def _packed(self, header: bytes) -> bytes:
        if len(header) < _LARGE_BYTES:
            return header
        return encode(self._writer.write(b"", [header]))

    def flush(self) -> None:
        """Send what found no room before."""
        pushed = False
        while self._waiting and self._outbound.push(self._waiting[0]):
            self._waiting.popleft()
            pushed = True
        if pushed:
            self.doorbell.ring()

    def receive(self) -> tuple[Any, list[Buffer], int] | None:
        """The next message, its frames, and the number that :meth:`release` takes (0 for none)."""
        header = self._inbound.pop()
        if header is None:
            return None
        message = decode_from_worker(header)
        if not isinstance(message, InFrames):
            return message, [], 0
        frames = self._reader.read(message)
        if message.header:
            return decode_from_worker(message.header), frames, message.number
        # The message itself was too large for the ring.
        message, number = decode_from_worker(bytes(frames[0])), message.number
        self._reader.release(number)
        return message, [], 0

    @property
    def from_worker(self) -> Ring:
        """Where the worker's messages arrive."""
        return self.mailbox.to_host

    @property
    def times(self) -> PartTimes:
        """The worker's time counts."""
        return self.mailbox.times

    @property
    def pulse(self) -> Pulse:
        """The worker's signs of life."""
        return self.mailbox.pulse

    def cancel_all(self) -> None:
        """Let the worker stop whatever it is doing."""
        self.mailbox.cancel_all()

    def can_call(self) -> bool:
        """Whether the worker has seen the last call and all messages."""
        return self.mailbox.can_call()

    def wake_if_asleep(self) -> None:
        """Ring if the worker would not see a call otherwise."""
        if self.mailbox.is_asleep:
            self.doorbell.ring()

    def cancel_up_to(self, request: int) -> None:
        """Let the worker neither begin nor finish requests up to this one."""
        self.mailbox.cancel_up_to(request)

    def release(self, number: int) -> None:
        """Release these frames."""
        self._reader.release(number)

    def close(self) -> None:
        """Close the descriptors; frames that are still in use stay mapped."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.doorbell.close()


class WorkerEnd:
    """The worker's end of a line.

    Args:
        descriptors: What it inherited.
        spins: Whether to spin for a while before sleeping.
    """

    def __init__(self, descriptors: Descriptors, spins: bool = True) -> None:
        self.descriptors = descriptors
        self.mailbox = Mailbox(descriptors.mailbox)
        self._inbound, self._outbound = self.mailbox.to_worker, self.mailbox.to_host
        self._reader = FrameReader(descriptors.to_worker, self.mailbox.released_by_worker)
        self._writer = FrameWriter(descriptors.from_worker, self.mailbox.released_by_host)
        self._spin_s = SPIN_S if spins else 0.0
        self.has_spoken = False
        """Whether anything was sent since this was last set to False."""
        self.waits: Callable[[], None] = _nothing
        """Called repeatedly while the host leaves no room."""
        self.is_over = False
        """Set by the host if the worker is a thread: the conversation is over."""
        self._poller = select.poll()
        self._poller.register(descriptors.doorbell, select.POLLIN)

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send, and wake the host."""
        self.leave(message, frames)
        self.wake_host()

    def offer(self, message: Message) -> None:
        """Send something optional, unless that could leave no room for replies."""
        if self._outbound.push(encode(message), Ring.CAPACITY // 2):
            self.has_spoken = True
            self.wake_host()

    def leave(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send without waking the host."""
        self.has_spoken = True
        header = encode(message)
        if frames:
            header = encode(self._writer.write(header, frames))
        elif len(header) >= _LARGE_BYTES:
            header = encode(self._writer.write(b"", [header]))
        while not self._outbound.push(header) and not self.is_over:
            # The host has not looked for long, because it is computing; it will.
            self.waits()
            self.wake_host()
            time.sleep(1e-3)

    def wake_host(self) -> None:
        """Have the host look into the mailbox."""
        bell.ring(self.descriptors.host_bell)

    def make_way(self) -> None:
        """Yield the core, which the host may be waiting for."""
        self.mailbox.make_way()

    def receive(self, timeout_s: float, spin: bool = True) -> Message | None:
        """The next message; None after ``timeout_s``, or if the host has hung up."""
        deadline = time.monotonic() + timeout_s
        spin_s = self._spin_s if spin and timeout_s > 0 else 0.0
        while not self.mailbox.wait_spinning(spin_s):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self.is_over:
                return None
            self._block(remaining_s)
        return None if self.is_over else self._take()

    def wait_for_call(self) -> StepCall | PartCall | None:
        """Spin briefly for a call only; None if :meth:`receive` has to look."""
        return self.mailbox.wait_for_call(self._spin_s) if self._spin_s else None

    def _take(self) -> Message:
        # The host calls only once earlier messages are read, so a call always comes first.
        if (call := self.mailbox.take_call()) is not None:
            return call
        header = self._inbound.pop()
        assert header is not None
        message: Message = decode_from_host(header)
        if isinstance(message, InFrames):
            (data,) = self._reader.read(message)
            number, message = message.number, decode_from_host(bytes(data))
            self._reader.release(number)
        return message

    def _block(self, seconds: float) -> None:
        if self.mailbox.fall_asleep() and self._poller.poll(int(seconds * 1000) + 1):
            bell.clear(self.descriptors.doorbell)
        self.mailbox.wake_up()
