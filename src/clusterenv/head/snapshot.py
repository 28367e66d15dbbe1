"""The head at one moment, for :mod:`clusterenv.tools.top` and :mod:`clusterenv.tools.view`."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from clusterenv.head.episodes import EpisodeLog
from clusterenv.head.fleet import Fleet, Presence
from clusterenv.head.publisher import Publisher
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.settings import Settings
from clusterenv.status.run_status import (
    HostSummary,
    LossSummary,
    RunStatus,
    WarningSummary,
    WorkerSummary,
)
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.records import Loss

_MOST_LOSSES = 100
_MOST_WARNINGS = 30
_LONGEST_TEXT = 300


@dataclass(frozen=True)
class Snapshots:
    """Takes snapshots of a run. Reads only; may be called from any thread, and again if it fails
    because the run went on meanwhile."""

    run_id: str
    settings: Settings
    publisher: Publisher
    fleet: Fleet
    ledger: Ledger
    episodes: EpisodeLog

    def take(self) -> RunStatus:
        """Everything that can be shown."""
        ledger, episodes = self.ledger, self.episodes
        return RunStatus(
            run=self.run_id,
            pid=os.getpid(),
            machine=socket.gethostname(),
            uptime_s=ledger.uptime_s,
            num_envs=self.settings.num_envs,
            version=self.publisher.version,
            hosts=tuple(map(_HostRecords(ledger).summary, self.fleet.survey())),
            pulls_by_cause=ledger.pulls_by_cause,
            bytes_by_kind=ledger.bytes_by_kind,
            sync_bytes=ledger.sync_bytes,
            bytes_avoided=ledger.bytes_avoided,
            shared_bytes=ledger.shared_bytes,
            hash_seed=ledger.hash_seed,
            losses_by_reason=ledger.losses_by_reason,
            env=_name_of_env(self.settings),
            sync=repr(self.settings.sync_rule)[:_LONGEST_TEXT],
            losses=tuple(map(_loss, ledger.losses[-_MOST_LOSSES:])),
            warnings=tuple(
                WarningSummary(one.time_s, one.text) for one in ledger.warnings[-_MOST_WARNINGS:]
            ),
            episodes=episodes.count,
            recent_episodes=episodes.recent,
        )


def _name_of_env(settings: Settings) -> str:
    """The id, the names of the callables that make the envs, or the kind of backend."""
    if settings.spec:
        return settings.spec.id
    factories = getattr(settings.backend, "factories", {})
    names = dict.fromkeys(map(_name_of_callable, factories.values()))
    if not names:
        return type(settings.backend).__name__
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def _name_of_callable(make: Any) -> str:
    while isinstance(make, partial):
        make = make.func
    name = getattr(make, "__qualname__", type(make).__qualname__)
    return str(name).replace("<locals>.", "")[:_LONGEST_TEXT]


class _HostRecords:
    """What the ledger knows about hosts, copied once for all of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._held, self._measured = ledger.held_by_host, ledger.latest_by_host
        self._pulls, self._thresholds = ledger.pulls_by_host, ledger.threshold_by_host
        self._losses: Counter[str] = Counter()
        for host, count in ledger.losses_by_host.items():
            self._losses[_place_of(host)] += count

    def summary(self, presence: Presence) -> HostSummary:
        """A host as it is now."""
        name = presence.name
        measured = self._measured.get(name)
        return HostSummary(
            name=name,
            machine=presence.machine,
            pid=presence.pid,
            state=presence.state,
            slots=len(presence.slots),
            rows=presence.num_rows,
            held=self._held.get(name),
            divergence=None if measured is None else measured.divergence,
            pulls=self._pulls.get(name, 0),
            restarts=presence.restarts,
            workers=tuple(map(_worker, presence.workers)),
            losses=self._losses[_place_of(name)],
            threshold=self._thresholds.get(name) or None,
            first_slot=presence.slots.start,
        )


def _place_of(host: str) -> str:
    """``host-1.2`` is in the same place as ``host-1.1``, and the losses of both count there."""
    return host.rpartition(".")[0]


def _worker(worker: WorkerStatus) -> WorkerSummary:
    slots = worker.slots
    return WorkerSummary(
        worker.name, worker.pid, worker.state, len(slots), worker.incarnation, slots.start
    )


def _loss(loss: Loss) -> LossSummary:
    reason = loss.reason.partition("\n")[0][:_LONGEST_TEXT]
    return LossSummary(loss.time_s, loss.host, loss.worker, len(loss.slots), loss.slot, reason)
