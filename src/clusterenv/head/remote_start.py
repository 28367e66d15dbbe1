"""Hosts join, are dealt slots and build their envs: a remote fleet before it can work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from clusterenv.errors import ProtocolError, StartupError
from clusterenv.head.descriptions import Description, description_reader
from clusterenv.head.host_answers import LONGEST_TEXT, shortened
from clusterenv.head.hosts import Hosts
from clusterenv.head.loss_reports import LossReports, harmless
from clusterenv.head.remote_errors import rebuild
from clusterenv.head.remote_host import LONGEST_REASON, HostState, RemoteHost
from clusterenv.head.watch import Ended
from clusterenv.host.plan import Spaces
from clusterenv.sharing import shares
from clusterenv.wire.messages import CannotStart, Warned, WorkerLost, WorkerStuck

_TICK_S = 1.0
# Hosts that are almost ready when min_hosts are should not have to join later.
_GRACE_FOR_LATE_S = 2.0
_MOST_WARNINGS = 1_000
_LONGEST_WARNING = 10_000


def deal_slots(num_envs: int, hosts: Sequence[RemoteHost], speeds: Sequence[float] = ()) -> None:
    """Deal all slots to these hosts, in proportion to their workers or by speed."""
    hosts = hosts[:num_envs]
    first = 0
    weights = speeds or [float(host.num_workers) for host in hosts]
    for host, size in zip(hosts, shares(num_envs, weights), strict=True):
        host.slots = range(first, first + size)
        first += size


def _is_built(host: RemoteHost) -> bool:
    return bool(host.descriptions)


class RemoteStart:
    """A remote fleet before the spaces are known."""

    def __init__(
        self,
        hosts: Hosts,
        num_envs: int,
        min_hosts: int,
        timeout_s: float,
        trusted: bool,
        reports: LossReports,
    ) -> None:
        self.hosts, self._num_envs, self.min_hosts = hosts, num_envs, min_hosts
        self._timeout_s, self._trusted, self._reports = timeout_s, trusted, reports
        self.warnings: list[tuple[str, str, str]] = []
        self.descriptions: list[tuple[int, Description]] = []
        """How many slots there are of each kind, in slot order, and their description."""
        hosts.start()
        self._wait_for(lambda host: host.hello is not None, "came", min_hosts)
        self._build()
        while not (self._wait_for(_is_built, "built their envs", 0) and self._describe()):
            self._build()

    def _build(self) -> None:
        """Deal all slots to the hosts that are present, and have them build the envs."""
        with self.hosts.driver:
            here = [
                h for h in self.hosts.all if h.state is not HostState.LOST and h.hello is not None
            ]
            for host in self.hosts.all:
                host.slots = range(0)
            deal_slots(self._num_envs, here)
            for host in here:
                if host.slots:
                    host.epoch += 1
                    self.hosts.build(host)

    def _wait_for(self, done: Callable[[RemoteHost], bool], what: str, enough: int) -> bool:
        """Wait for every host; once ``enough`` are done, only briefly for the others.

        Returns:
            False if a host with slots was lost meanwhile, so that the others must share them.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            wanted = [h for h in self.hosts.all if h.state is not HostState.LOST]
            if not enough:
                wanted = [host for host in wanted if host.slots]
            late = [host for host in wanted if not done(host)]
            num_done = len(wanted) - len(late)
            if not late:
                return sum(len(host.slots) for host in wanted) == self._num_envs or bool(enough)
            if enough and num_done >= enough:
                deadline = min(deadline, time.monotonic() + _GRACE_FOR_LATE_S)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                if enough and num_done >= enough:
                    return True
                reception = self.hosts.reception
                raise StartupError(
                    f"{num_done} of {len(wanted)} hosts {what} within "
                    f"startup_timeout_s={self._timeout_s:g}; waiting for "
                    f"{', '.join(map(self.hosts.whereabouts, late))}{reception.turned_away}"
                    f"{self.hosts.log_tail(late[0])}",
                    refused=reception.last_refusal,
                    unreached=self._unreached(late[0]),
                )
            self._pump(min(_TICK_S, remaining_s))

    def _unreached(self, host: RemoteHost) -> str:
        """The address that a host has not reached, although it was started."""
        was_started = host.hello is None and not self.hosts.is_queued(host)
        return self.hosts.address if was_started else ""

    def _pump(self, timeout_s: float) -> None:
        with self.hosts.driver as driver:
            if not driver.arrivals:
                driver.drive(timeout_s)
        for name, message, _ in driver.take_arrivals():
            host = self.hosts.find(name)
            if host is not None:
                self._take(host, message)

    def _take(self, host: RemoteHost, message: Any) -> None:
        match message:
            case CannotStart(raised=raised, where=where) if raised is not None:
                where = f"{where:.{LONGEST_REASON}} of {host.whereabouts()}"
                raise rebuild(shortened(raised), where)
            case CannotStart(text=text) | WorkerLost(error=text) if text:
                self._lose(host, f"{text:.{LONGEST_TEXT}}")
            case WorkerLost(obituary=text) | WorkerStuck(text=text):
                # Its host replaces a lost worker, and nothing was asked of it yet.
                self._reports.warn(host.name, f"{host.whereabouts()}: {text:.{LONGEST_TEXT}}")
            case Ended(reason=reason, refused=refused):
                what = "cannot start" if self.hosts.is_queued(host) else "was lost"
                self._lose(host, f"{self.hosts.whereabouts(host)} {what}: {reason}", refused)
            case Warned(worker=worker, category=category, text=text):
                if len(self.warnings) < _MOST_WARNINGS:
                    text = f"{text:.{_LONGEST_WARNING}}"
                    self.warnings.append((f"{host.name}, {worker:.50}", category, text))
            case ProtocolError():
                self._lose_liar(host, message)
            case _:
                self._lose_liar(host, f"a host may not say {type(message).__name__} now")

    def _lose_liar(self, host: RemoteHost, what: object) -> None:
        self._lose(host, f"{host.whereabouts()} was lost: it broke the protocol: {what}")

    def _lose(self, host: RemoteHost, obituary: str, refused: str = "") -> None:
        obituary = harmless(obituary + self.hosts.log_tail(host))
        self.hosts.dismiss(host)
        left = sum(other.state is not HostState.LOST for other in self.hosts.all)
        if left < self.min_hosts:
            raise StartupError(obituary, refused=refused)
        self._reports.warn(host.name, obituary, "; starting without it")

    def _describe(self) -> bool:
        """Read what hosts say about their envs; False if one was lost because it sent nonsense."""
        self.descriptions = []
        read = description_reader(self._trusted)
        for host in self.staffed:
            try:
                self.descriptions += [
                    (count, read(data, count)) for count, data in host.descriptions
                ]
            except ProtocolError as error:
                self._lose_liar(host, error)
                return False
        return True

    @property
    def staffed(self) -> list[RemoteHost]:
        """The hosts that own slots, in the order of their slots."""
        owners = [
            host for host in self.hosts.all if host.slots and host.state is not HostState.LOST
        ]
        return sorted(owners, key=lambda host: host.slots.start)

    def lay_out(self, spaces: Spaces) -> None:
        """Send the agreed spaces, and wait until all hosts are ready for work."""
        with self.hosts.driver:
            self.hosts.spaces = spaces
            for host in self.hosts.all:
                self.hosts.lay_out(host)
        while not self._wait_for(lambda host: host.is_ready, "got ready", 0):
            self._build()

    def close(self, grace_s: float) -> None:
        """End everything; first give envs ``grace_s`` to close."""
        self.hosts.close(grace_s)
