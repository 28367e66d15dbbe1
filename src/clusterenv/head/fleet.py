"""What the head needs of its hosts, be it one object in its process or many behind sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clusterenv.arrays import Array
from clusterenv.host.events import Event, Rows, Voided
from clusterenv.plain.row_layout import ResultRows
from clusterenv.protocol.requests import AnyRequest, Newest, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.stopwatch import Stopwatch


class Host(Protocol):
    """One machine's envs, as the head sees them."""

    @property
    def name(self) -> str:
        """Which host, and the how-manieth in its place."""

    @property
    def slots(self) -> range:
        """Its slots, which are neighbours."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""

    def ask(self, request: AnyRequest, actions: Array | None = None) -> None:
        """Have some of its slots worked on; ``actions`` has a row for each of a step's slots."""

    def announce(self, newest: Newest) -> None:
        """There is a new version."""

    def abandon(self) -> set[int]:
        """Take no notice of the answers to what was asked so far; the slots it never reached."""


@dataclass(frozen=True)
class Presence:
    """A host at one moment, for whoever looks at the run."""

    name: str
    machine: str
    """``""`` before it has come."""
    pid: int
    state: str
    """``ordered``, ``joining``, ``ready``, ``leaving`` or ``lost``."""
    slots: range
    num_rows: int
    """Steps and resets of single slots so far, those of its predecessors included."""
    restarts: int
    """How often the host in this place was replaced."""
    workers: tuple[WorkerStatus, ...]


@dataclass(frozen=True)
class Deal:
    """Slots were dealt anew: their envs are gone, and these requests with them."""

    moved: tuple[int, ...]
    voided: tuple[Voided, ...]


class Fleet(Protocol):
    """The hosts of a run."""

    @property
    def hosts(self) -> Sequence[Host]:
        """Those that own slots, in the order of these."""

    @property
    def results(self) -> ResultRows:
        """The results of all slots, a row each."""

    @property
    def deals(self) -> int:
        """How often slots were dealt so far."""

    @property
    def has_core_to_spare(self) -> bool:
        """Whether workers leave the head a core."""

    def step_at_once(self, step: Step, actions: Array) -> bool:
        """Step every slot and wait, where that is possible without further ado; else False."""

    @property
    def is_in_lockstep(self) -> bool:
        """Whether :meth:`step_at_once` has begun something that it could not end."""

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until so many slots are ready; False if there is something else to hear or do."""

    def events(self, timeout_s: float) -> Iterator[tuple[Host, Event]]:
        """Wait for something to happen, and give what it means."""

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers of all hosts as they are now, as far as the head knows."""

    def survey(self) -> tuple[Presence, ...]:
        """All hosts as they are now, as far as the head knows. Reads only; for any thread."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for hosts."""

    def wake(self) -> None:
        """End a wait; may be called by any thread."""

    def check_acted(self, rows: Rows, acted: Any) -> None:
        """ProtocolError if the policy cannot have done this in these rows."""

    def blame(self, host: Host, event: Event, error: Exception) -> None:
        """Nothing could be made of what this host said: its answer does not count."""

    def accuse(self, host: str, policy_id: int, error: Exception) -> bool:
        """Nothing could be made of rows of this host, taken before, in which that policy acted.

        May be called by any thread.

        Returns:
            Whether that is the host's fault, which ends it.
        """

    def welcome_arrivals(self) -> Deal | None:
        """Let hosts that came late take part: best between requests."""

    def rebalance(self, speeds: Sequence[float]) -> Deal:
        """Deal the slots in proportion to these speeds of the hosts."""

    def do_without(self, host: Host) -> Deal | None:
        """Deal the slots of this host to the others; None if they are too few."""

    def close(self, grace_s: float) -> None:
        """End everything; let envs close for ``grace_s`` first."""
