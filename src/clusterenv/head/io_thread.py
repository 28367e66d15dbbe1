"""The thread that owns the socket: joins are served while the user's thread computes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError
from clusterenv.head.inbox import Inbox
from clusterenv.launchers.base import THREAD_NAME
from clusterenv.sync.ledger import Ledger
from clusterenv.wire.bell import Bell
from clusterenv.wire.chunks import join
from clusterenv.wire.codec import decode, encode
from clusterenv.wire.messages import Message
from clusterenv.wire.zmq_channel import HeadSocket

# Takes (worker, message) and returns the replies to send at once, or None to pass it on.
Receptionist = Callable[[str, Message], Sequence[tuple[Message, Sequence[Buffer]]] | None]
OnDisconnect = Callable[[str], None]

_log = logging.getLogger("clusterenv")
_MAX_MESSAGE_BYTES = 1 << 30


class IoThread(threading.Thread):
    """Sends what is queued, passes what arrives to the receptionist or to the inbox."""

    def __init__(
        self,
        socket: HeadSocket,
        inbox: Inbox,
        receptionist: Receptionist,
        on_disconnect: OnDisconnect,
        ledger: Ledger,
        max_message_bytes: int = _MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(name=f"{THREAD_NAME} io", daemon=True)
        self._socket, self._inbox, self._receptionist = socket, inbox, receptionist
        self._on_disconnect, self._ledger = on_disconnect, ledger
        self._max_message_bytes = max_message_bytes
        self._outbox: deque[tuple[str, Message, Sequence[Buffer]]] = deque()
        self._wake = Bell()
        self._closing = False

    def send(self, worker: str, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Queue a message; called by any thread."""
        self._outbox.append((worker, message, frames))
        self._wake.ring()

    def run(self) -> None:
        """Serve until :meth:`close`."""
        poller = zmq.Poller()
        self._socket.register(poller)
        poller.register(self._wake.fd, zmq.POLLIN)
        while not self._closing:
            poller.poll(1000)
            self._wake.clear()
            self._socket.answer_handshakes()
            for worker in self._socket.disconnected():
                self._on_disconnect(worker)
            self._receive()
            self._send_queued()

    def _receive(self) -> None:
        for worker, chunks in self._socket.receive():
            try:
                self._take(worker, join(chunks, self._max_message_bytes))
            except Exception as error:  # whatever a worker sends must not end this thread
                _log.debug("%s is cut off", worker, exc_info=True)
                self._socket.revoke(worker)
                self._inbox.put(worker, ProtocolError.of(error))

    def _take(self, worker: str, frames: Sequence[Buffer]) -> None:
        message = decode(frames[0])
        self._count(message, frames)
        replies = self._receptionist(worker, message)
        if replies is None:
            self._inbox.put(worker, message, list(frames[1:]), size=sum(map(len, frames)))
        for reply, reply_frames in replies or ():
            self._outbox.append((worker, reply, reply_frames))

    def _send_queued(self) -> None:
        while self._outbox:
            worker, message, frames = self._outbox.popleft()
            parts = [encode(message), *frames]
            if self._socket.send(worker, parts):
                self._count(message, parts)

    def _count(self, message: Message, frames: Sequence[Buffer]) -> None:
        self._ledger.count(type(message).__name__, sum(map(len, frames)))

    def close(self) -> None:
        """Send what is queued, end the thread, close the socket."""
        self._closing = True
        self._wake.ring()
        self.join(5.0)
        self._send_queued()
        self._socket.close()
        self._wake.close()
