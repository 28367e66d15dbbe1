"""The head at one moment, for :mod:`clusterenv.cli.top`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from clusterenv.head.roster import Member
from clusterenv.wire.status import Status, WorkerStatus

if TYPE_CHECKING:
    from clusterenv.head.head import Head


def snapshot(head: Head) -> Status:
    """What there is to see. Reads only; may be called by any thread, and asked again if it fails
    because the run went on meanwhile."""
    ledger = head.crew.ledger
    return Status(
        run=head.run.id,
        pid=os.getpid(),
        host=socket.gethostname(),
        address=head.crew.address,
        uptime_s=ledger.uptime_s,
        num_envs=head.num_envs,
        version=head.crew.publisher.version,
        workers=tuple(_worker(head, member) for member in list(head.roster.members)),
        pulls_by_cause=ledger.pulls_by_cause,
        bytes_by_kind=ledger.bytes_by_kind,
        sync_bytes=ledger.sync_bytes,
        bytes_avoided=ledger.bytes_avoided,
    )


def _worker(head: Head, member: Member) -> WorkerStatus:
    worker, ledger = member.worker, head.crew.ledger
    host, pid = head.crew.reception.host_of(worker)
    measured = ledger.latest_by_worker.get(worker)
    return WorkerStatus(
        worker=worker,
        host=host,
        pid=pid,
        state=_state(member),
        slots=len(member.slots),
        rows=member.rows,
        restarts=member.incarnation,
        held=ledger.held_by_worker.get(worker),
        divergence=None if measured is None else measured.divergence,
        pulls=ledger.pulls_by_worker.get(worker, 0),
    )


def _state(member: Member) -> str:
    if member.leaving:
        return "leaving"
    return "ready" if member.joined else "joining"
