"""A host's socket: one outbound connection to the head."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from clusterenv.arrays import Buffer
from clusterenv.protocol.message import Message, encode
from clusterenv.wire.chunks import split
from clusterenv.wire.head_socket import keep_alive, receive_frames, send_frames
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import decode_from_head

_LINGER_MS = 500
# One failure may be a head that is just ending; a slow one, a head too busy to answer.
_FAILED_HANDSHAKES_ARE_A_NO = 3
_FAILED_AT_ONCE_S = 2.0


class Contact(enum.Enum):
    """The state of a host's one connection to its head."""

    NOT_YET = enum.auto()
    THERE = enum.auto()
    BROKEN = enum.auto()
    """For good: what was under way is lost, and another host gets the place."""
    REFUSED = enum.auto()
    """The listener there does not accept this host's key, or does not have the head's key."""


class HostSocket:
    """A host's end: one DEALER."""

    def __init__(self, invitation: Invitation) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.set(zmq.CURVE_SERVERKEY, invitation.server_key.encode())
        self.socket.set(zmq.CURVE_PUBLICKEY, invitation.public_key.encode())
        self.socket.set(zmq.CURVE_SECRETKEY, invitation.secret_key.encode())
        self.socket.set(zmq.LINGER, _LINGER_MS)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.set(zmq.IPV6, 1)
        keep_alive(self.socket, invitation.lease_s)
        self._monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_DISCONNECTED
        )
        self._contact = Contact.NOT_YET
        self._failed_handshakes, self._connected_at = 0, 0.0
        self.socket.connect(invitation.address)

    def contact(self) -> Contact:
        """The state of the connection now."""
        while self._monitor.poll(0):
            self._note(recv_monitor_message(self._monitor)["event"])
        return self._contact

    def _note(self, event: int) -> None:
        now = time.monotonic()
        match event, self._contact:
            case zmq.EVENT_CONNECTED, _:
                self._connected_at = now
            case zmq.EVENT_HANDSHAKE_SUCCEEDED, Contact.NOT_YET:
                self._contact = Contact.THERE
            case zmq.EVENT_DISCONNECTED, Contact.THERE:
                self._contact = Contact.BROKEN
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH, _:
                self._contact = Contact.REFUSED
            case (
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
                Contact.NOT_YET,
            ) if now - self._connected_at < _FAILED_AT_ONCE_S:
                self._failed_handshakes += 1
                if self._failed_handshakes == _FAILED_HANDSHAKES_ARE_A_NO:
                    self._contact = Contact.REFUSED

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Send; arrays are not copied, so they must not be written to before they are sent."""
        send_frames(self.socket, list(split([encode(message), *frames])))

    def receive(self, timeout_s: float) -> tuple[Any, list[Buffer]] | None:
        """The next message and its frames; None after ``timeout_s``."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        header, *frames = receive_frames(self.socket)
        return decode_from_head(header.buffer), [frame.buffer for frame in frames]

    def close(self) -> None:
        """Send what is still queued, then close."""
        self._context.destroy(linger=_LINGER_MS)
