"""Hosts on other machines, or in processes of this one, behind one encrypted connection each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.head.fleet import Deal, Host, Presence
from clusterenv.head.host_answers import LONGEST_TEXT, RowSink, events_in
from clusterenv.head.remote_host import HostState, RemoteHost
from clusterenv.head.remote_start import RemoteStart, deal_slots
from clusterenv.head.watch import Ended
from clusterenv.host.events import Event, Lost, Rows, Values, Voided
from clusterenv.launchers.base import Launcher
from clusterenv.plain.row_layout import ResultRows, RowLayout
from clusterenv.plain.spaces import rows_of
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Collect, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.restarts import explained, longest_delay_s
from clusterenv.sharing import in_words
from clusterenv.stopwatch import Stopwatch
from clusterenv.wire.messages import CannotStart
from clusterenv.wire.reply_checks import ReplyChecks

_log = logging.getLogger("clusterenv")
# By then a host should have reported a worker that hangs.
_HUNG_GRACE_S = 10.0
_CHECK_EVERY_S = 0.5
_WAITING = (HostState.HERE, HostState.SPARE)
_WITHOUT_SLOTS = (HostState.ORDERED, HostState.LATE, HostState.SPARE, HostState.LOST)


class RemoteFleet:
    """Running hosts behind sockets.

    It knows much because it is all that a session sees of many machines: events, losses, slots.
    """

    has_core_to_spare = True
    is_in_lockstep = False

    def __init__(
        self, start: RemoteStart, layout: RowLayout, checks: ReplyChecks, num_envs: int
    ) -> None:
        self._start, self._hosts, self._checks = start, start.hosts, checks
        self._reception = start.hosts.reception
        self._sink = RowSink(layout, num_envs)
        self._num_envs = num_envs
        self._driver = driver = start.hosts.driver
        driver.row_bytes = layout.size(1)
        driver.expect(num_envs)
        self.deals = 0
        self.hosts: Sequence[Host] = start.staffed
        self._next_check = 0.0
        self._looked_at = (0, 0)

    @property
    def results(self) -> ResultRows:
        """The results of all slots, one row each."""
        return self._sink.results

    @property
    def launcher(self) -> Launcher:
        """What started the hosts."""
        return self._hosts.launcher

    @property
    def address(self) -> str:
        """Where hosts reach the head."""
        return self._hosts.address

    @property
    def spares(self) -> list[str]:
        """The hosts that wait for a place."""
        return self._reception.spares

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers of all hosts as they are now, as far as the head knows."""
        return tuple(worker for host in self._start.staffed for worker in host.workers)

    def survey(self) -> tuple[Presence, ...]:
        """All hosts as they are now, including those without slots."""
        return tuple(host.presence() for host in self._hosts.all)

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for hosts."""
        return self._driver.stopwatch

    def step_at_once(self, step: Step, actions: Array) -> bool:
        """False: nothing is quicker than a request."""
        return False

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """False: events tell what is ready."""
        return False

    def wake(self) -> None:
        """End a wait; may be called from any thread."""
        self._driver.wake()

    def events(self, timeout_s: float) -> Iterator[tuple[Host, Event]]:
        """Wait for something to happen, and yield the events."""
        driver = self._driver
        with driver:
            driver.drive(0.0 if driver.arrivals else timeout_s)
        for name, message, frames in driver.take_arrivals():
            host = self._hosts.find(name)
            if host is not None:
                yield from self._take(host, message, frames)
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_EVERY_S
            yield from self._find_losses(now)

    def _take(
        self, host: RemoteHost, message: Any, frames: list[Any]
    ) -> Iterator[tuple[Host, Event]]:
        match message:
            case Ended(reason=reason):
                yield host, self._lose(host, reason)
            case CannotStart(text=text, raised=raised):
                reason = text if raised is None else f"{raised.name}: {raised.text}"
                reason = f"it could not build its envs: {reason:.{LONGEST_TEXT}}"
                yield host, self._lose(host, reason)
            case ProtocolError():
                yield host, self._lose(host, f"it broke the protocol: {message}")
            case _:
                try:
                    for event in events_in(host, message, frames, self._sink, self._checks):
                        if isinstance(event, FragmentPart):
                            self._hosts.count_coded(message, frames, event)
                        yield host, event
                except Exception as error:
                    reason = f"it broke the protocol: {ProtocolError.of(error)}"
                    yield host, self._lose(host, reason)

    def check_acted(self, rows: Rows, acted: Any) -> None:
        """ProtocolError if the policy cannot have done this in these rows."""
        if not isinstance(rows.request, Act):
            raise ProtocolError("no policy was asked to act")

        def observe() -> list[Array]:
            leaves, own = self.results.observations, rows_of(rows.slots)
            return [leaf[own] for leaf in leaves if leaf is not None]

        self._checks.check_acted(acted, len(rows.slots), rows.request.newest, observe)

    def blame(self, host: Host, event: Event, error: Exception) -> None:
        """Reject an answer of this host that could not be used."""
        liar = self._hosts.find(host.name)
        if liar is None:
            return
        if isinstance(event, Rows | Values | FragmentPart):
            liar.pending.reopen(event.request, event.slots)
        self._driver.put(host.name, ProtocolError.of(error))

    def accuse(self, host: str, policy_id: int, error: Exception) -> bool:
        """Whether unusable rows are this host's fault: yes, if the policy can act at the head."""
        if not self._checks.knows(policy_id):
            return False
        self._driver.put(host, ProtocolError.of(error))
        return True

    # Losses.

    def _find_losses(self, now: float) -> Iterator[tuple[Host, Event]]:
        limits = self._hosts.limits
        for host, reason in self._hosts.start_due():
            yield host, self._lose(host, reason)
        for host in self._start.staffed:
            if host.leaving and all(isinstance(v.request, Collect) for v in host.pending.all):
                yield host, self._lose(host, host.leaving)
            elif host.is_ready and self._is_overdue(host):
                yield host, self._lose(host, f"no answer within {limits.step_timeout_s:g} s")
            elif not host.is_ready and now - host.started_at > limits.restart_timeout_s:
                reason = f"not ready within restart_timeout_s={limits.restart_timeout_s:g}"
                yield host, self._lose(host, reason, is_absent=True)

    def _is_overdue(self, host: RemoteHost) -> bool:
        """Whether it hangs. It may need longer than its workers: it may have to replace one."""
        limits = self._hosts.limits
        replacing_s = longest_delay_s(limits) + limits.restart_timeout_s
        pending, staffed_at = host.pending, host.staffed_at
        return pending.is_overdue(limits.step_timeout_s, _HUNG_GRACE_S, staffed_at, replacing_s)

    def _lose(self, host: RemoteHost, reason: str, *, is_absent: bool = False) -> Lost:
        """Replace a lost host, and say which requests will not be answered."""
        now = time.monotonic()
        slots, worked_s, voided = tuple(host.slots), host.worked_s(now), host.void()
        obituary = (
            f"{self._hosts.whereabouts(host)} was lost: {explained(reason)}; it ran "
            f"{in_words(slots)}{self._hosts.log_tail(host)}"
        )
        limits, restarts = self._hosts.limits, host.restarts
        if is_absent and self._others(host):
            refusal = self._let_be_late(host, reason, now)
            if not refusal:
                return Lost(slots, reason, obituary, voided, obituary, host.name)
        else:
            refusal = restarts.spend(limits, reason, now, worked_s, bool(host.leaving))
        if refusal:
            self._hosts.dismiss(host)
            return Lost(slots, reason, obituary, voided, f"{obituary}\n{refusal}", host.name)
        self._hosts.replace(host, restarts.delay_s(limits))
        # It is started as soon as the loss has been reported.
        self._next_check = 0.0
        self.hosts = self._start.staffed
        self.deals += 1
        return Lost(slots, reason, obituary, voided, who=host.name)

    def _let_be_late(self, host: RemoteHost, reason: str, now: float) -> str:
        """Let a host that is not ready in time join later; returns why not, or empty.

        A host that is there, but slow to build its envs, may be late as often as replaced.
        """
        if host.state is HostState.ORDERED:
            return ""
        limits = self._hosts.limits
        if refusal := host.restarts.spend(limits, reason, now, 0.0, is_orderly=True):
            return refusal
        with self._hosts.driver:
            # It may have become ready at the last moment.
            host.become(HostState.SPARE if host.is_ready else HostState.LATE)
        return ""

    def _others(self, absent: RemoteHost) -> list[RemoteHost]:
        """The other hosts that are ready, if there are enough of them."""
        others = [host for host in self._hosts.all if host.is_ready and host is not absent]
        return others if len(others) >= max(1, self._start.min_hosts) else []

    # Who owns which slots.

    def welcome_arrivals(self) -> Deal | None:
        """Let hosts that joined late take part; best called between requests."""
        # A stream calls this for every fragment.
        looked_at = self._hosts.num_arrived, self.deals
        if looked_at == self._looked_at:
            return None
        self._looked_at = looked_at
        arrived = [host for host in self._hosts.all if host.state in _WAITING]
        if not arrived or len(self.hosts) >= self._num_envs:
            return None
        present = [host for host in self._hosts.all if host.slots or host in arrived]
        return self._deal(present)

    def rebalance(self, speeds: Sequence[float]) -> Deal:
        """Deal the slots in proportion to these speeds of the hosts."""
        return self._deal(self._start.staffed, speeds)

    def do_without(self, host: Host) -> Deal | None:
        """Deal the slots of this host to the others; None if there are too few of them."""
        absent = self._hosts.find(host.name)
        others = self._others(absent) if absent is not None else []
        if not others or absent is None:
            return None
        if absent.state not in _WITHOUT_SLOTS:
            self._hosts.dismiss(absent)
        return self._deal(others)

    def _deal(self, present: list[RemoteHost], speeds: Sequence[float] = ()) -> Deal:
        before = {host.name: host.slots for host in self._hosts.all}
        for host in self._hosts.all:
            host.slots = range(0)
        deal_slots(self._num_envs, present, speeds)
        self.deals += 1
        moved: list[int] = []
        voided: list[Voided] = []
        with self._driver:
            for host in self._hosts.all:
                if host.slots != before[host.name]:
                    voided += host.void()
                    moved += host.slots
                    if host.slots and host.state is not HostState.ORDERED:
                        self._hosts.build(host)
        self.hosts = self._start.staffed
        return Deal(tuple(moved), tuple(voided))

    def close(self, grace_s: float) -> None:
        """End everything; first give envs ``grace_s`` to close."""
        self._start.close(grace_s)
