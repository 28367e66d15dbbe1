"""A host with a ticket asks the head which host it should be."""

from __future__ import annotations

import sys
import time

from clusterenv.wire.addresses import why_unreachable
from clusterenv.wire.host_socket import Contact, HostSocket
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import Close, Enrol, Hello, Refused

_POLL_S = 0.5
# A head with too many applicants cuts off the last ones.
_AGAIN_S = 1.0


class NoHeadError(SystemExit):
    """There is no head any more, or none for this ticket; nothing is wrong on this side."""


def apply(ticket: Invitation, hello: Hello) -> Invitation:
    """Wait for a place, as a spare if necessary; NoHeadError after ``lease_s`` without a head."""
    while True:
        socket = HostSocket(ticket)
        try:
            socket.send(hello)
            own = _wait_for_place(socket, ticket)
        finally:
            socket.close()
        if own is not None:
            _say(f"enrolled as {own.host}")
            # The user who passed --head knows better than the head how to reach it from here.
            return own.at(ticket.address)
        _say("lost the connection to the head; trying again")
        time.sleep(_AGAIN_S)


def _wait_for_place(socket: HostSocket, ticket: Invitation) -> Invitation | None:
    """The host's own invitation; None if the connection broke, and the application with it."""
    deadline = time.monotonic() + ticket.lease_s
    while True:
        received = socket.receive(_POLL_S)
        match received[0] if received else None:
            case Enrol(invitation=data):
                return Invitation.from_bytes(data)
            case Refused(reason=reason):
                raise SystemExit(f"clusterenv host: the head refused this host: {reason}")
            case Close():
                _say("the run is over")
                raise SystemExit(0)
        match socket.contact():
            case Contact.BROKEN:
                return None
            case Contact.REFUSED:
                raise NoHeadError(
                    f"clusterenv host: the head at {ticket.address} refused the key: it belongs "
                    "to another run, or to one that is over"
                )
            case Contact.NOT_YET if time.monotonic() > deadline:
                raise NoHeadError(
                    f"clusterenv host: no head at {ticket.address} for lease_s="
                    f"{ticket.lease_s:g}: {why_unreachable(ticket.address)}"
                )


def _say(text: str) -> None:
    print(f"clusterenv host: {text}", file=sys.stderr, flush=True)
