"""A worker's channel to the head: a socket, and a mailbox where the two share memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import zmq

from clusterenv.arrays import Buffer
from clusterenv.wire import bell
from clusterenv.wire.codec import decode, encode
from clusterenv.wire.frame_buffer import FrameWriter
from clusterenv.wire.invitation import SharedDescriptors
from clusterenv.wire.messages import Message, PartCall, Reply, StepCall, Warned
from clusterenv.wire.shared_memory import Mailbox
from clusterenv.wire.worker_channel import WorkerSocket

# Longer than the head takes between two steps, and than one worker waits for another.
SPIN_S = 2e-3
_LOOK_AT_SOCKET_EVERY_S = 0.02


class Channel(Protocol):
    """What a worker needs: say something, hear something."""

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send a message and its array frames."""

    def recv(self, timeout_s: float, spin: bool = True) -> tuple[Message, list[Buffer]] | None:
        """The next message and its frames; None after ``timeout_s``.

        ``spin`` says to look out for a request; without, for what comes through the socket.
        """

    def close(self) -> None:
        """Send what is queued and close."""


class SharedChannel:
    """Replies through shared memory where they fit, everything else through the socket."""

    def __init__(self, socket: WorkerSocket, mailbox: Mailbox, shared: SharedDescriptors) -> None:
        self._socket = socket
        self._mailbox, self._outbound = mailbox, mailbox.to_head
        self._frames = FrameWriter(shared.frames, mailbox.frames_released)
        self._doorbell_fd, self._head_bell_fd = shared.doorbell, shared.head_bell
        self._looked_at_socket = 0.0
        self.has_spoken = False
        """Whether anything was sent since this was last set to False."""
        self._poller = zmq.Poller()
        self._poller.register(socket.socket, zmq.POLLIN)
        self._poller.register(shared.doorbell, zmq.POLLIN)

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send replies through shared memory, if there is room, and warnings not after them."""
        if self.leave(message, frames):
            self.wake_head()

    def leave(self, message: Message, frames: Sequence[Buffer] = ()) -> bool:
        """Send without waking the head; whether it lies in shared memory, and waits for that."""
        self.has_spoken = True
        if isinstance(message, Reply | Warned) and self._share(message, frames):
            return True
        self._socket.send(message, frames)
        return False

    def wake_head(self) -> None:
        """Have it look into shared memory."""
        bell.ring(self._head_bell_fd)

    def make_way(self) -> None:
        """The head may wait for this very core."""
        self._mailbox.make_way()

    def _share(self, message: Message, frames: Sequence[Buffer]) -> bool:
        header = encode(message)
        if not frames:
            return self._outbound.push(header)
        envelope = self._frames.write(header, frames)
        return envelope is not None and self._outbound.push(encode(envelope))

    def recv(self, timeout_s: float, spin: bool = True) -> tuple[Message, list[Buffer]] | None:
        """Spin briefly on the mailbox, then block on both."""
        deadline = time.monotonic() + timeout_s
        spin_s = SPIN_S if spin and timeout_s > 0 else 0.0
        while True:
            if not self._socket_is_due() and self._mailbox.wait_spinning(spin_s):
                return self._take_mail(), []
            received = self._socket.recv(0)
            if received is not None:
                return received
            if self._mailbox.has_mail():
                continue
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            self._block(remaining_s)

    def wait_for_call(self) -> StepCall | PartCall | None:
        """Spin briefly on the mailbox for this alone; None if :meth:`recv` has to look."""
        if self._socket_is_due() and self._socket.socket.poll(0):
            self._looked_at_socket = 0.0
            return None
        return self._mailbox.wait_for_call(SPIN_S)

    def _take_mail(self) -> Message:
        # Nobody calls before what was sent earlier has been read: the call is always the older.
        if (call := self._mailbox.take_call()) is not None:
            return call
        header = self._mailbox.to_worker.pop()
        assert header is not None
        message: Message = decode(header)
        return message

    def _block(self, seconds: float) -> None:
        if self._mailbox.fall_asleep():
            events = dict(self._poller.poll(int(seconds * 1000) + 1))
            if self._doorbell_fd in events:
                bell.clear(self._doorbell_fd)
        self._mailbox.wake_up()

    def _socket_is_due(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at_socket < _LOOK_AT_SOCKET_EVERY_S:
            return False
        self._looked_at_socket = now
        return True

    def close(self) -> None:
        """Close the socket; the mailbox is the head's."""
        self._socket.close()
