"""The head at one moment, for :mod:`clusterenv.tools.top`."""

from __future__ import annotations

import os
import socket

from clusterenv.head.fleet import Fleet, Presence
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.status.run_status import HostSummary, RunStatus, WorkerSummary
from clusterenv.sync.ledger import Ledger


def snapshot(run_id: str, num_envs: int, version: int, fleet: Fleet, ledger: Ledger) -> RunStatus:
    """What there is to see. Reads only; may be called by any thread, and asked again if it fails
    because the run went on meanwhile."""
    return RunStatus(
        run=run_id,
        pid=os.getpid(),
        machine=socket.gethostname(),
        uptime_s=ledger.uptime_s,
        num_envs=num_envs,
        version=version,
        hosts=tuple(_host(presence, ledger) for presence in fleet.survey()),
        pulls_by_cause=ledger.pulls_by_cause,
        bytes_by_kind=ledger.bytes_by_kind,
        sync_bytes=ledger.sync_bytes,
        bytes_avoided=ledger.bytes_avoided,
        shared_bytes=ledger.shared_bytes,
    )


def _host(presence: Presence, ledger: Ledger) -> HostSummary:
    name = presence.name
    measured = ledger.latest_by_host.get(name)
    return HostSummary(
        name=name,
        machine=presence.machine,
        pid=presence.pid,
        state=presence.state,
        slots=len(presence.slots),
        rows=presence.num_rows,
        held=ledger.held_by_host.get(name),
        divergence=None if measured is None else measured.divergence,
        pulls=ledger.pulls_by_host.get(name, 0),
        restarts=presence.restarts,
        workers=tuple(map(_worker, presence.workers)),
    )


def _worker(worker: WorkerStatus) -> WorkerSummary:
    return WorkerSummary(
        worker.name, worker.pid, worker.state, len(worker.slots), worker.incarnation
    )
