"""Workers build their envs: a host before the spaces of the run are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from clusterenv.errors import ProtocolError, StartupError
from clusterenv.host.events import Stuck
from clusterenv.host.plan import Plan
from clusterenv.host.slowness import find_stuck
from clusterenv.host.worker import Worker, WorkerState
from clusterenv.host.workers import Workers
from clusterenv.memory.messages import EnvsBuilt, EnvWarned
from clusterenv.protocol.replies import Raised

_TICK_S = 0.1
_LOOK_EVERY_S = 0.5


class CouldNotBuildError(Exception):
    """User code raised while a worker built its envs."""

    def __init__(self, raised: Raised, where: str) -> None:
        super().__init__(f"{raised.name}: {raised.text}")
        self.raised, self.where = raised, where


class Building:
    """Has the workers build the envs of a plan, and gathers what they say about them."""

    def __init__(self, workers: Workers, plan: Plan) -> None:
        self.workers, self.plan = workers, plan
        self._descriptions: dict[int, bytes] = {}
        self._warnings: list[tuple[str, str, str]] = []
        self._next_look = 0.0
        for worker in workers.deal(plan.slots):
            workers.build(worker, plan)

    @property
    def is_done(self) -> bool:
        """Whether all workers have built their envs."""
        return not self.late

    @property
    def late(self) -> list[Worker]:
        """The workers that have not built theirs yet."""
        return [w for w in self.workers if w.slots and w.index not in self._descriptions]

    @property
    def descriptions(self) -> list[tuple[int, bytes]]:
        """How many slots each worker has, in slot order, and what it says about them."""
        staffed = [worker for worker in self.workers if worker.slots]
        return [(len(worker.slots), self._descriptions[worker.index]) for worker in staffed]

    def take_warnings(self) -> list[tuple[str, str, str]]:
        """Worker, category and text of the warnings since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def wait(self, timeout_s: float, tell: Callable[[Stuck], None]) -> None:
        """Wait for workers; StartupError if one is lost, CouldNotBuildError if user code raises.

        Args:
            timeout_s: How long to wait at most.
            tell: Called with reports about workers that take long.
        """
        inbox, deadline = self.workers.inbox, time.monotonic() + timeout_s
        while not self.is_done and time.monotonic() < deadline:
            remaining_s = deadline - time.monotonic()
            inbox.wait(min(_TICK_S, max(0.0, remaining_s)))
            self.hear()
            for stuck in self.find_stuck():
                tell(stuck)

    def find_stuck(self) -> Iterator[Stuck]:
        """Reports about workers that take long; checked every now and then."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_S
            yield from find_stuck(self.late, self.workers.limits, now)

    def hear(self) -> None:
        """Handle all messages that are there, without waiting."""
        inbox = self.workers.inbox
        self.workers.num_messages += 1
        for worker, why in self.workers.start_due():
            raise StartupError(worker.obituary(why))
        for index, message, _, number in inbox.take():
            worker = self.workers.all[index]
            if number:
                # A fragment of what it ran before.
                worker.line.release(number)
            self._hear(worker, message)
        for worker, how in self.workers.ended():
            if worker.slots:
                raise StartupError(worker.obituary(how))

    def _hear(self, worker: Worker, message: Any) -> None:
        match message:
            case EnvsBuilt(description=description, deal=deal) if deal == worker.deal:
                self.workers.note(worker, message)
                self._descriptions[worker.index] = description
            case Raised(request=0) if worker.state is WorkerState.BUILDING:
                raise CouldNotBuildError(message, worker.whereabouts())
            case EnvWarned(category=category, text=text):
                self._warnings.append((worker.name, category, text))
            case ProtocolError():
                raise StartupError(worker.obituary(f"it broke the protocol: {message}"))
