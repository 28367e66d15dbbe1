"""Takes in the events of hosts: rows, fragments, values, errors, losses."""

from __future__ import annotations

from typing import Any

from clusterenv.errors import WorkerLostError
from clusterenv.head.batch import Batch
from clusterenv.head.drift import Drift
from clusterenv.head.fleet import Deal, Fleet, Host
from clusterenv.head.fragment_box import FragmentBox
from clusterenv.head.gathered import Gathered
from clusterenv.head.host_requests import HostRequests
from clusterenv.head.loss_reports import LossReports
from clusterenv.head.recovery import Recovery
from clusterenv.head.remote_errors import rebuild
from clusterenv.host.events import Event, Failed, Lost, Rows, Stuck, Values, WorkerWarned
from clusterenv.interrupts import Uninterrupted
from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.values import unpack
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Collect, CountTime, Reset, Step
from clusterenv.wire.reply_checks import check_values

# What is asked again or made up for when a worker is lost; other calls fail.
_FORGIVEN = Reset | Step | Act | Collect | CountTime


class Intake:
    """Waits for events of the hosts, and puts each where it belongs."""

    def __init__(
        self,
        fleet: Fleet,
        trusted: bool,
        asking: HostRequests,
        batch: Batch,
        recovery: Recovery,
        drift: Drift,
        reports: LossReports,
        ready: list[int],
    ) -> None:
        self._fleet, self._trusted, self._reports = fleet, trusted, reports
        self._asking, self._batch, self._recovery = asking, batch, recovery
        self._drift, self._ready, self._episodes = drift, ready, batch.episodes
        self.fragments = FragmentBox()
        self.gathered = Gathered()
        """What has come besides rows and fragments."""
        self._uninterrupted = Uninterrupted(self._wake)

    def _wake(self) -> None:
        self._fleet.wake()

    def pump(self, timeout_s: float) -> None:
        """Wait for events, and take them in."""
        # Ctrl-C may end the wait, but what was received must be taken in first.
        with self._uninterrupted:
            for host, event in self._fleet.events(timeout_s):
                try:
                    self._take(host, event)
                except Exception as error:  # whatever a host sends must not reach the user's code
                    self._fleet.blame(host, event, error)

    def _take(self, host: Host, event: Event) -> None:
        match event:
            case Rows():
                self._take_rows(host, event)
            case FragmentPart():
                self._episodes.note_fragment(event)
                self._drift.note_fragment(host, event)
                self.fragments.put(event)
            case Values(request=request, slots=slots, values=packed):
                values = unpack(packed, allow_pickle=self._trusted)
                check_values(request, slots, values)
                if isinstance(request, CountTime):
                    self.gathered.put_profile(host.name, values)
                else:
                    self.gathered.put_values(slots, values)
            case Failed(raised=raised, where=where):
                self.gathered.fail(rebuild(raised, where))
            case WorkerWarned():
                self.gathered.warn(event)
                self._reports.keep(event)
            case Stuck(text=text):
                self._reports.warn(host.name, text)
            case Lost():
                self._lost(host, event)

    def _take_rows(self, host: Host, rows: Rows) -> None:
        batch, trusted, slots, request = self._batch, self._trusted, rows.slots, rows.request
        if rows.objects:
            batch.put_objects(slots, unpack(rows.objects, allow_pickle=trusted))
        if rows.infos:
            batch.infos.put(unpack_infos(rows.infos, allow_pickle=trusted), slots)
        if rows.acted:
            self._take_acted(host, rows, unpack(rows.acted, allow_pickle=trusted))
        if isinstance(request, Reset) and request.reports_loss:
            batch.truncated[list(slots)] = True
        self._ready.extend(slots)

    def _take_acted(self, host: Host, rows: Rows, acted: Any) -> None:
        slots = rows.slots
        self._fleet.check_acted(rows, acted)
        if self._drift.is_measured:
            observations = self.gathered.observations_of(slots)
            self._drift.note_step(host, slots[0], observations, acted)
        self.gathered.put_acted(slots, acted)

    def _lost(self, host: Host, lost: Lost) -> None:
        self._reports.note(host.name, lost)
        deal = None
        if lost.error:
            if not self._reports.is_to_blame(lost.slot):
                deal = self._fleet.do_without(host)
            if deal is None:
                self._asking.incomplete = lost.error
                self.gathered.fail(WorkerLostError(lost.error))
                return
            self._reports.warn(host.name, lost.error, "; its slots go to the other hosts")
            self.fragments.drop_moved(deal.moved)
            lost = Lost(deal.moved, lost.reason, lost.obituary, (*lost.voided, *deal.voided))
        if host not in self._fleet.hosts:
            # Its last measurement says nothing about the host that acts now.
            self._drift.forget(host)
        missing = self._recovery.lost(lost.slots, lost.voided, in_vain=lost.in_vain)
        self.fragments.put_missing(missing)
        if any(not isinstance(one.request, _FORGIVEN) for one in lost.voided):
            self.gathered.fail(
                WorkerLostError(
                    f"a worker of {host.name} was lost during this call and is being replaced "
                    f"({lost.reason}): call it again"
                )
            )

    def dealt(self, deal: Deal | None) -> None:
        """Recover slots that were dealt anew: what they were doing is lost."""
        if deal is not None:
            self.fragments.drop_moved(deal.moved)
            self.fragments.put_missing(self._recovery.lost(deal.moved, deal.voided))
