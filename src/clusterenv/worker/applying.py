"""A worker that comes with a ticket asks the head which worker it is to be."""

from __future__ import annotations

import sys
import time

from clusterenv.wire.addresses import why_unreachable
from clusterenv.wire.contact import Contact
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import Close, Enrol, Refused
from clusterenv.wire.worker_channel import WorkerSocket
from clusterenv.worker.introduction import hello

_POLL_S = 0.5


class NoHeadError(SystemExit):
    """There is no head any more, or not for this ticket; nothing is wrong here."""


def apply(ticket: Invitation) -> Invitation:
    """Wait for a place, as a spare if need be; NoHeadError after ``lease_s`` without."""
    while True:
        socket = WorkerSocket(ticket)
        try:
            socket.send(hello())
            own = _wait_for_place(socket, ticket)
        finally:
            socket.close()
        if own is not None:
            _say(f"enrolled as {own.worker}")
            # Whoever wrote --head knows better than the head how to reach it from here.
            return own.at(ticket.address)
        _say("lost the connection to the head; trying again")


def _wait_for_place(socket: WorkerSocket, ticket: Invitation) -> Invitation | None:
    """The worker's own invitation; None if the connection broke, and with it the application."""
    deadline = time.monotonic() + ticket.lease_s
    while True:
        received = socket.recv(_POLL_S)
        match received[0] if received else None:
            case Enrol(invitation=data):
                return Invitation.from_bytes(data)
            case Refused(reason=reason):
                raise SystemExit(f"clusterenv worker: the head refused this worker: {reason}")
            case Close():
                _say("the run is over")
                raise SystemExit(0)
        match socket.contact():
            case Contact.BROKEN:
                return None
            case Contact.REFUSED:
                raise NoHeadError(
                    f"clusterenv worker: the head at {ticket.address} refused the key: it belongs "
                    "to another run, or to one that is over"
                )
            case Contact.NOT_YET if time.monotonic() > deadline:
                raise NoHeadError(
                    f"clusterenv worker: no head at {ticket.address} for lease_s="
                    f"{ticket.lease_s:g}: {why_unreachable(ticket.address)}"
                )


def _say(text: str) -> None:
    print(f"clusterenv worker: {text}", file=sys.stderr, flush=True)
