"""Hosts on other machines, or in processes of this one, behind one encrypted connection each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.head.fleet import Deal, Host, Presence
from clusterenv.head.host_answers import LONGEST_TEXT, RowSink, events_in
from clusterenv.head.remote_host import RemoteHost, State
from clusterenv.head.remote_start import RemoteStart, deal_slots
from clusterenv.head.watch import Ended
from clusterenv.host.events import Event, Lost, Rows, Values, Voided
from clusterenv.launchers.base import Launcher
from clusterenv.plain.row_layout import ResultRows, RowLayout
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Act, Collect, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.stopwatch import Stopwatch
from clusterenv.wire.messages import CannotStart
from clusterenv.wire.reply_checks import ReplyChecks

_log = logging.getLogger("clusterenv")
# A host should have told of a worker that hangs by then.
_HUNG_GRACE_S = 10.0
_CHECK_EVERY_S = 0.5


class RemoteFleet:
    """Running hosts behind sockets.

    It knows much because it is what a session sees of many machines: events, losses, slots.
    """

    has_core_to_spare = True
    is_in_lockstep = False

    def __init__(
        self, start: RemoteStart, layout: RowLayout, checks: ReplyChecks, num_envs: int
    ) -> None:
        self._start, self._hosts, self._checks = start, start.hosts, checks
        self._sink = RowSink(layout, num_envs)
        self._num_envs = num_envs
        self.deals = 0
        self.hosts: Sequence[Host] = start.staffed
        self._next_check = 0.0
        self._looked_at = (0, 0)

    @property
    def results(self) -> ResultRows:
        """The results of all slots, a row each."""
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
        return self._hosts.spares

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers of all hosts as they are now, as far as the head knows."""
        return tuple(worker for host in self._start.staffed for worker in host.workers)

    def survey(self) -> tuple[Presence, ...]:
        """All hosts as they are now, also those without slots."""
        return tuple(host.presence() for host in self._hosts.all)

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for hosts."""
        return self._hosts.driver.stopwatch

    def step_at_once(self, step: Step, actions: Array) -> bool:
        """Nothing is quicker than asking."""
        return False

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """What is ready is told by events."""
        return False

    def wake(self) -> None:
        """End a wait; may be called by any thread."""
        self._hosts.driver.wake()

    def events(self, timeout_s: float) -> Iterator[tuple[Host, Event]]:
        """Wait for something to happen, and give what it means."""
        driver = self._hosts.driver
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
                        yield host, event
                except Exception as error:
                    reason = f"it broke the protocol: {ProtocolError.of(error)}"
                    yield host, self._lose(host, reason)

    def check_acted(self, rows: Rows, acted: Any, others: Iterable[Any]) -> None:
        """ProtocolError if no policy can have done this in these rows, where others did that."""
        if not isinstance(rows.request, Act):
            raise ProtocolError("no policy was asked to act")
        self._checks.check_acted(acted, len(rows.slots), rows.request.newest, others)

    def fit_together(self, part: FragmentPart, others: Iterable[FragmentPart]) -> bool:
        """Whether a fragment can be joined with others that wait for that."""
        return all(self._checks.fits(part, other) for other in others)

    def blame(self, host: Host, event: Event, error: Exception) -> None:
        """Nothing could be made of what this host said: its answer does not count."""
        liar = self._hosts.find(host.name)
        if liar is None:
            return
        if isinstance(event, Rows | Values | FragmentPart):
            liar.pending.reopen(event.request, event.slots)
        self._hosts.driver.put(host.name, ProtocolError.of(error))

    # Losses.

    def _find_losses(self, now: float) -> Iterator[tuple[Host, Event]]:
        limits = self._hosts.limits
        for host in self._start.staffed:
            if host.leaving and all(isinstance(v.request, Collect) for v in host.pending.all):
                yield host, self._lose(host, host.leaving, counts=False)
            elif host.is_ready and host.pending.is_overdue(limits.step_timeout_s, _HUNG_GRACE_S):
                yield host, self._lose(host, f"no answer within {limits.step_timeout_s:g} s")
            elif not host.is_ready and now - host.started_at > limits.restart_timeout_s:
                reason = f"not ready within restart_timeout_s={limits.restart_timeout_s:g}"
                yield host, self._lose(host, reason, is_absent=True)

    def _lose(
        self, host: RemoteHost, reason: str, *, counts: bool = True, is_absent: bool = False
    ) -> Lost:
        """A host is lost: replace it, and say what will not be answered."""
        slots, voided = tuple(host.slots), host.void()
        obituary = (
            f"{self._hosts.whereabouts(host)} was lost: {reason}; it ran slots "
            f"{', '.join(map(str, slots))}{self._hosts.log_tail(host)}"
        )
        if is_absent and self._others(host):
            if host.state is not State.ORDERED:
                self._hosts.dismiss(host)
            # Else it may still come, and take part then.
            return Lost(slots, reason, obituary, voided, obituary)
        limit, restarts = self._hosts.limits.max_restarts_per_minute, len(host.restarts)
        if counts and not host.may_restart(limit, time.monotonic()):
            self._hosts.dismiss(host)
            error = (
                f"{obituary}\nIt was replaced {restarts} times within a minute already, which is "
                "max_restarts_per_minute; fix the env, or raise that limit"
            )
            return Lost(slots, reason, obituary, voided, error)
        self._hosts.replace(host)
        self.hosts = self._start.staffed
        self.deals += 1
        return Lost(slots, reason, obituary, voided)

    def _others(self, absent: RemoteHost) -> list[RemoteHost]:
        """The hosts that are there, but for this one, if they are enough."""
        others = [host for host in self._hosts.all if host.is_ready and host is not absent]
        return others if len(others) >= max(1, self._start.min_hosts) else []

    # Who owns which slots.

    def welcome_arrivals(self) -> Deal | None:
        """Let hosts that came late take part: best between requests."""
        # Streams ask again and again.
        looked_at = self._hosts.num_arrived, self.deals
        if looked_at == self._looked_at:
            return None
        self._looked_at = looked_at
        arrived = [host for host in self._hosts.all if host.state is State.HERE]
        if not arrived or len(self.hosts) >= self._num_envs:
            return None
        present = [host for host in self._hosts.all if host.slots or host in arrived]
        return self._deal(present)

    def rebalance(self, speeds: Sequence[float]) -> Deal:
        """Deal the slots in proportion to these speeds of the hosts."""
        return self._deal(self._start.staffed, speeds)

    def do_without(self, host: Host) -> Deal | None:
        """Deal the slots of this host to the others; None if they are too few."""
        absent = self._hosts.find(host.name)
        others = self._others(absent) if absent is not None else []
        if not others or absent is None:
            return None
        if absent.state not in (State.LOST, State.ORDERED):
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
        with self._hosts.driver:
            for host in self._hosts.all:
                if host.slots != before[host.name]:
                    voided += host.void()
                    moved += host.slots
                    if host.slots and host.state is not State.ORDERED:
                        self._hosts.build(host)
        self.hosts = self._start.staffed
        return Deal(tuple(moved), tuple(voided))

    def close(self, grace_s: float) -> None:
        """End everything; let envs close for ``grace_s`` first."""
        self._start.close(grace_s)
