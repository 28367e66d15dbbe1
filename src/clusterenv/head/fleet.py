"""What the head needs of its hosts, whether one object in its process or many behind sockets."""

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
        """Its place in the run and its number in that place, as in ``host-3.1``."""

    @property
    def slots(self) -> range:
        """Its slots, which are consecutive."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""

    def ask(self, request: AnyRequest, actions: Array | None = None) -> None:
        """Request work on some of its slots; ``actions`` has a row for each slot of a step."""

    def announce(self, newest: Newest) -> None:
        """Tell it about a new version."""

    def abandon(self) -> set[int]:
        """Ignore the answers to all requests so far; returns the slots it never got to."""


@dataclass(frozen=True)
class Presence:
    """A host at one moment, for anyone watching the run."""

    name: str
    machine: str
    """Empty until the host has joined."""
    pid: int
    state: str
    """``ordered``, ``joining``, ``ready``, ``leaving`` or ``lost``."""
    slots: range
    num_rows: int
    """Steps and resets of single slots so far, including its predecessors'."""
    restarts: int
    """How often the host in this place was replaced."""
    workers: tuple[WorkerStatus, ...]


@dataclass(frozen=True)
class Deal:
    """Slots that were dealt anew: their envs are gone, and these requests with them."""

    moved: tuple[int, ...]
    voided: tuple[Voided, ...]


class Fleet(Protocol):
    """The hosts of a run."""

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts that own slots, in the order of their slots."""

    @property
    def results(self) -> ResultRows:
        """The results of all slots, one row each."""

    @property
    def deals(self) -> int:
        """How often slots were dealt so far."""

    @property
    def has_core_to_spare(self) -> bool:
        """Whether the workers leave the head a core."""

    def step_at_once(self, step: Step, actions: Array) -> bool:
        """Step every slot and wait, if that needs nothing special; else False."""

    @property
    def is_in_lockstep(self) -> bool:
        """Whether :meth:`step_at_once` has begun a step that it could not finish."""

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until this many slots are ready; False if something else must be handled first."""

    def events(self, timeout_s: float) -> Iterator[tuple[Host, Event]]:
        """Wait for something to happen, and yield the events."""

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers of all hosts as they are now, as far as the head knows."""

    def survey(self) -> tuple[Presence, ...]:
        """All hosts as they are now, as far as the head knows. Reads only; for any thread."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for hosts."""

    def wake(self) -> None:
        """End a wait; may be called from any thread."""

    def check_acted(self, rows: Rows, acted: Any) -> None:
        """ProtocolError if the policy cannot have done this in these rows."""

    def blame(self, host: Host, event: Event, error: Exception) -> None:
        """Reject an answer of this host that could not be used."""

    def accuse(self, host: str, policy_id: int, error: Exception) -> bool:
        """Report rows that this host sent earlier, in which that policy acted, as unusable.

        May be called by any thread.

        Returns:
            Whether that is the host's fault; if so, it is ended.
        """

    def welcome_arrivals(self) -> Deal | None:
        """Let hosts that joined late take part; best called between requests."""

    def rebalance(self, speeds: Sequence[float]) -> Deal:
        """Deal the slots in proportion to these speeds of the hosts."""

    def do_without(self, host: Host) -> Deal | None:
        """Deal the slots of this host to the others; None if there are too few of them."""

    def close(self, grace_s: float) -> None:
        """End everything; first give envs ``grace_s`` to close."""
