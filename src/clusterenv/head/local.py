"""On one machine the host is an object in the head's process: nothing listens, nothing connects."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clusterenv.arrays import Array
from clusterenv.errors import StartupError
from clusterenv.head.descriptions import Description, description_reader
from clusterenv.head.fleet import Deal, Host, Presence
from clusterenv.head.publisher import Publisher
from clusterenv.head.remote_errors import rebuild
from clusterenv.host.building import Building, CouldNotBuildError
from clusterenv.host.events import Event, PullWanted, Rows, Stuck
from clusterenv.host.host import LocalHost
from clusterenv.host.plan import Plan, Spaces, WorkerLimits
from clusterenv.host.starting import Starter
from clusterenv.host.weights import PulledWeights
from clusterenv.host.workers import Workers
from clusterenv.plain.row_layout import ResultRows
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.stopwatch import Stopwatch
from clusterenv.sync.rules import SyncRule

NAME = "host-0.0"
_TICK_S = 1.0


class LocalStart:
    """A local fleet before the spaces are known."""

    def __init__(
        self,
        num_workers: int,
        starter: Starter,
        limits: WorkerLimits,
        may_spin: bool,
        plan: Plan,
        tell: Callable[[Stuck], None],
    ) -> None:
        self._limits, self._plan, self._tell = limits, plan, tell
        self.may_spin = may_spin
        self._workers = Workers(num_workers, starter, limits, may_spin)
        try:
            self._building = self._build()
        except BaseException:
            self._workers.close(0.0)
            raise

    def _build(self) -> Building:
        building, timeout_s = Building(self._workers, self._plan), self._limits.startup_timeout_s
        try:
            building.wait(timeout_s, self._tell)
        except CouldNotBuildError as error:
            raised = rebuild(error.raised, error.where)
            raise raised from raised.__cause__
        if late := building.late:
            num_all = sum(1 for worker in self._workers if worker.slots)
            raise StartupError(
                f"{num_all - len(late)} of {num_all} workers built their envs within "
                f"startup_timeout_s={timeout_s:g}; waiting for "
                f"{', '.join(worker.whereabouts() for worker in late)}{late[0].log()}"
            )
        return building

    @property
    def descriptions(self) -> list[tuple[int, Description]]:
        """How many slots there are of each kind, in slot order, and their description."""
        read = description_reader(trusted=True)
        return [(count, read(data, count)) for count, data in self._building.descriptions]

    @property
    def warnings(self) -> list[tuple[str, str, str]]:
        """Worker, category and text of the warnings issued while workers built their envs."""
        return self._building.take_warnings()

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for workers."""
        return self._workers.stopwatch

    def lay_out(self, spaces: Spaces, rule: SyncRule, ready: list[int]) -> LocalHost:
        """Create the host; its workers are still getting ready."""
        return LocalHost(NAME, self._workers, self._plan, spaces, rule, ready, queues_ahead=True)

    def close(self, grace_s: float) -> None:
        """End the workers; first give envs ``grace_s`` to close."""
        self._workers.close(grace_s)


class LocalFleet:
    """One host, in this process."""

    deals = 0

    def __init__(self, start: LocalStart, host: LocalHost, publisher: Publisher) -> None:
        self._start, self._host, self._publisher = start, host, publisher
        self._num_steps, self._num_rows = 0, 0
        self.hosts: Sequence[Host] = (host,)

    @property
    def results(self) -> ResultRows:
        """The results of all slots, one row each; workers write to them directly."""
        rows = self._host.rows
        return rows.results

    @property
    def has_core_to_spare(self) -> bool:
        """Whether the workers leave the head a core."""
        return self._start.may_spin

    def step_at_once(self, step: Step, actions: Array) -> bool:
        """Step every slot and wait, if that needs nothing special; else False."""
        is_done = self._host.step_again(step, actions)
        if is_done:
            self._num_steps += 1
        return is_done

    @property
    def is_in_lockstep(self) -> bool:
        """Whether :meth:`step_at_once` has begun a step that it could not finish."""
        return self._host.is_in_lockstep

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until this many slots are ready; False if something else must be handled first."""
        return self._host.wait_for_parts(num_slots, timeout_s)

    def events(self, timeout_s: float) -> Iterator[tuple[Host, Event]]:
        """Wait for something to happen, and yield the events."""
        host = self._host
        for event in host.events(timeout_s):
            if isinstance(event, PullWanted):
                # Handing over is only a copy into shared memory.
                newest = self._publisher.hand_over(host.name, event)
                vector = newest.snapshot.vector
                pulled = PulledWeights(
                    newest.policy, newest.version, vector, event.cause, len(vector)
                )
                host.take_weights(pulled)
            else:
                self._count(event)
                yield host, event

    def _count(self, event: Event) -> None:
        if isinstance(event, Rows):
            self._num_rows += len(event.slots)
        elif isinstance(event, FragmentPart):
            self._num_rows += len(event.slots) * event.request.num_steps

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers as they are now."""
        return self._host.workers

    def survey(self) -> tuple[Presence, ...]:
        """The one host, on this machine and in this process."""
        host, workers = self._host, self.workers
        num_rows = self._num_steps * len(host.slots) + self._num_rows + host.num_silent_rows
        state = "ready" if host.is_ready else "joining"
        return (
            Presence(
                host.name,
                socket.gethostname(),
                os.getpid(),
                state,
                host.slots,
                num_rows,
                0,
                workers,
            ),
        )

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts what the user's thread does, and how long it waits for workers."""
        return self._start.stopwatch

    def wake(self) -> None:
        """End a wait; may be called from any thread."""
        self._host.wake()

    def check_acted(self, rows: Rows, acted: Any) -> None:
        """Check nothing: this process trusts its own workers."""

    def blame(self, host: Host, event: Event, error: Exception) -> None:
        """Raise the error: it is this process's own, not a peer's."""
        raise error

    def accuse(self, host: str, policy_id: int, error: Exception) -> bool:
        """False: an error is never a peer's fault here."""
        return False

    def welcome_arrivals(self) -> Deal | None:
        """None: no host joins later."""
        return None

    def rebalance(self, speeds: Sequence[float]) -> Deal:
        """Deal nothing: there is only one host."""
        return Deal((), ())

    def do_without(self, host: Host) -> Deal | None:
        """None: there is no other host."""
        return None

    def close(self, grace_s: float) -> None:
        """End everything; first give envs ``grace_s`` to close."""
        self._start.close(grace_s)
