"""The workers of a host as processes: starts, reaches, replaces and ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

from clusterenv.descriptors import PER_WORKER, make_room
from clusterenv.host.inbox import Inbox
from clusterenv.host.plan import Plan, WorkerLimits
from clusterenv.host.starting import NotStarted, Starter
from clusterenv.host.worker import Worker, WorkerState
from clusterenv.memory.line import HostEnd
from clusterenv.memory.messages import BuildEnvs, CloseEnvs
from clusterenv.memory.segments import create
from clusterenv.memory.weights import WeightStore
from clusterenv.protocol.message import Message
from clusterenv.sharing import shares
from clusterenv.stopwatch import Stopwatch
from clusterenv.worker.main import Start

_CHECK_EVERY_S = 0.1


class Workers:
    """Exists before it is known what is to be run; a ``LocalHost`` is made from it.

    It knows much because all workers share what it opens: memory, weights and a bell.
    """

    def __init__(self, count: int, starter: Starter, limits: WorkerLimits, may_spin: bool) -> None:
        self.limits, self._starter = limits, starter
        self.num_messages = 0
        """Grows with every message to or from workers; flags do not count."""
        self.num_changes = 0
        """Grows whenever the state of a worker changes."""
        self.last_number = 0
        """The number of the last request to them. It also grows when other slots are dealt to
        them: a late answer must never be taken for one to a newer request."""
        self._next_check = 0.0
        self._waiting: list[Worker] = []
        """Replacements that have yet to be started."""
        make_room(PER_WORKER * (count + 1), f"{count} workers")
        with ExitStack() as undo:
            undo.callback(starter.close)
            self.inbox = Inbox(may_spin)
            undo.callback(self.inbox.close)
            self.rows_fd = create("rows")
            undo.callback(os.close, self.rows_fd)
            self.weights = WeightStore.create()
            undo.callback(self.weights.close)
            self.evaluation_weights = WeightStore.create()
            undo.callback(self.evaluation_weights.close)
            self.all: list[Worker] = []
            undo.callback(self._end_all, 0.0)
            for index in range(count):
                self.all.append(self._make(index, 0, time.monotonic()))
                self.start(self.all[-1])
            self._undo = undo.pop_all()

    def _make(self, index: int, incarnation: int, start_at: float) -> Worker:
        """A worker that can be told what to do, and begins once it is started."""
        make_room(PER_WORKER, f"worker-{index}.{incarnation}")
        weights, evaluation = self.weights.fd, self.evaluation_weights.fd
        line = HostEnd(self.inbox.bell, self.rows_fd, weights, evaluation)
        self.inbox.watch(index, line)
        return Worker(index, line, NotStarted(), start_at, incarnation)

    @property
    def stopwatch(self) -> Stopwatch:
        """Counts how long the host's driver waits for workers."""
        return self.inbox.stopwatch

    def start(self, worker: Worker) -> None:
        """Start the process of a worker; OSError if that is impossible."""
        limits = self.limits
        start = Start(
            worker.line.descriptors,
            limits.step_timeout_s,
            limits.startup_timeout_s,
            limits.slow_warning_s,
        )
        worker.running = self._starter.start(worker.name, start)
        self.num_changes += 1

    def start_due(self) -> Iterator[tuple[Worker, str]]:
        """Start the replacements that are due; yields those that cannot be started, and why."""
        for worker in list(self._waiting):
            if time.monotonic() < worker.started_at:
                continue
            try:
                self.start(worker)
            except OSError as error:
                self._waiting.remove(worker)
                yield worker, f"it cannot be started: {error}"
            else:
                self._waiting.remove(worker)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def deal(self, slots: range) -> list[Worker]:
        """Deal these slots to the workers evenly; returns the workers that have some."""
        used = self.all[: len(slots)]
        first = slots.start
        for worker, size in zip(used, shares(len(slots), [1.0] * len(used)), strict=True):
            worker.slots = tuple(range(first, first + size))
            first += size
        for worker in self.all[len(slots) :]:
            worker.slots = ()
        return used

    def build(self, worker: Worker, plan: Plan) -> None:
        """Have a worker build the envs of its slots."""
        worker.not_reset.clear()
        worker.stop_work(time.monotonic())
        worker.deal += 1
        message = BuildEnvs(
            worker.slots,
            plan.backend,
            plan.autoreset_mode,
            plan.trusted,
            plan.search_path,
            plan.working_directory,
            worker.deal,
        )
        self.tell(worker, message)

    def tell(self, worker: Worker, message: Message) -> None:
        """Send a message that changes the worker's state."""
        self.num_messages += 1
        self.note(worker, message)
        worker.line.send(message)

    def note(self, worker: Worker, message: Message) -> None:
        """Note a message that changes the worker's state."""
        self.num_changes += 1
        worker.note(message)

    def send(self, worker: Worker, message: Message) -> None:
        """Send work, now or once the worker is ready."""
        self.num_messages += 1
        worker.send(message)

    def replace(self, worker: Worker, start_at: float) -> Worker:
        """End a worker, and put another in its place, to be started at ``start_at``."""
        self.num_messages += 1
        worker.running.kill()
        self._starter.end_strays(worker.name)
        successor = self._make(worker.index, worker.incarnation + 1, start_at)
        successor.slots, successor.restarts = worker.slots, worker.restarts
        self.all[worker.index] = successor
        self._waiting.append(successor)
        self.num_changes += 1
        worker.state = WorkerState.LOST
        worker.line.close()
        return successor

    def dismiss(self, worker: Worker) -> None:
        """End a worker at once."""
        self.num_changes += 1
        worker.state = WorkerState.LOST
        if worker in self._waiting:
            self._waiting.remove(worker)
        self.inbox.forget(worker.index)
        worker.running.kill()
        self._starter.end_strays(worker.name)
        worker.line.close()

    def is_debugging(self) -> bool:
        """Whether a debugger has stopped one of them."""
        return self._starter.is_debugging()

    def ended(self) -> Iterator[tuple[Worker, str]]:
        """The workers that have ended by themselves, and how; checked every now and then."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        for worker in list(self.all):
            worker.line.flush()
            how = None if worker.state is WorkerState.LOST else worker.running.how_it_ended()
            if how is not None:
                yield worker, how

    def close(self, grace_s: float) -> None:
        """Give the workers ``grace_s`` to close their envs, then end them."""
        self._end_all(grace_s)
        self._undo.close()

    def _end_all(self, grace_s: float) -> None:
        alive = [worker for worker in self.all if worker.state is not WorkerState.LOST]
        if grace_s > 0:
            for worker in alive:
                worker.line.cancel_all()
                worker.line.send(CloseEnvs())
        deadline = time.monotonic() + grace_s
        for worker in alive:
            # One that is not ready has no envs to close.
            if worker.is_ready:
                worker.running.wait(deadline)
        for worker in alive:
            self.dismiss(worker)
        if self.all:
            self._starter.end_strays()
        self.all.clear()
