"""A worker that comes with a ticket asks the head which worker it is to be."""

from __future__ import annotations

import sys
import time

from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import Close, Enrol, Refused
from clusterenv.wire.zmq_channel import WorkerSocket
from clusterenv.worker.introduction import hello

_POLL_S = 1.0


def apply(ticket: Invitation) -> Invitation:
    """Wait for a place, as a spare if need be; SystemExit without a head for ``lease_s``."""
    socket = WorkerSocket(ticket)
    socket.send(hello())
    deadline = time.monotonic() + ticket.lease_s
    try:
        while True:
            received = socket.recv(_POLL_S)
            match received[0] if received else None:
                case Enrol(invitation=data):
                    return _own(Invitation.from_bytes(data), ticket)
                case Refused(reason=reason):
                    raise SystemExit(f"clusterenv worker: the head refused this worker: {reason}")
                case Close():
                    raise SystemExit("clusterenv worker: the run is over")
            if socket.is_connected():
                deadline = time.monotonic() + ticket.lease_s
            elif time.monotonic() > deadline:
                raise SystemExit(
                    f"clusterenv worker: no head at {ticket.address} for lease_s={ticket.lease_s:g}"
                )
    finally:
        socket.close()


def _own(invitation: Invitation, ticket: Invitation) -> Invitation:
    print(f"clusterenv worker: enrolled as {invitation.worker}", file=sys.stderr, flush=True)
    # Whoever wrote --head knows better than the head how to reach it from here.
    return invitation.at(ticket.address)
