"""The workers of a host as processes: start, reach, replace and end them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

from clusterenv.host.inbox import Inbox
from clusterenv.host.plan import Plan, WorkerLimits
from clusterenv.host.starting import Starter
from clusterenv.host.worker import State, Worker
from clusterenv.memory.line import HostEnd
from clusterenv.memory.messages import Build, Close
from clusterenv.memory.segments import create
from clusterenv.memory.weights import WeightStore
from clusterenv.protocol.message import Message
from clusterenv.sharing import shares
from clusterenv.worker.main import Start

_CHECK_EVERY_S = 0.1


class Workers:
    """Exists before anybody knows what is to be run; a :class:`Host` is made from it."""

    def __init__(self, count: int, starter: Starter, limits: WorkerLimits, may_spin: bool) -> None:
        self.limits, self._starter = limits, starter
        self.num_messages = 0
        """Grows whenever something is said to workers or by them, other than by flags."""
        self.num_changes = 0
        """Grows whenever the state of a worker changes."""
        self.last_number = 0
        """Of what they were asked. It grows also when other slots are dealt to them: a late answer
        must never be taken for that to a newer request."""
        self._next_check = 0.0
        with ExitStack() as undo:
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
                self.all.append(self._start(index, 0))
            self._undo = undo.pop_all()

    def _start(self, index: int, incarnation: int) -> Worker:
        weights, evaluation = self.weights.fd, self.evaluation_weights.fd
        line = HostEnd(self.inbox.bell, self.rows_fd, weights, evaluation)
        limits = self.limits
        start = Start(line.descriptors, limits.step_timeout_s, limits.startup_timeout_s)
        try:
            running = self._starter.start(f"worker-{index}.{incarnation}", start)
        except BaseException:
            line.close()
            raise
        self.inbox.watch(index, line)
        return Worker(index, line, running, time.monotonic(), incarnation)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def deal(self, slots: range) -> list[Worker]:
        """Deal these slots to the workers, evenly; those that have some."""
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
        worker.deal += 1
        message = Build(
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
        """Say something that changes the worker's state."""
        self.num_messages += 1
        self.note(worker, message)
        worker.line.send(message)

    def note(self, worker: Worker, message: Message) -> None:
        """Something was said that changes the worker's state."""
        self.num_changes += 1
        worker.note(message)

    def send(self, worker: Worker, message: Message) -> None:
        """Send work, now or once the worker is ready."""
        self.num_messages += 1
        worker.send(message)

    def replace(self, worker: Worker) -> Worker:
        """End a worker, and start another in its place.

        Should Ctrl-C come between, the worker is found to have ended, and is replaced then.
        """
        self.num_messages += 1
        worker.running.kill()
        successor = self._start(worker.index, worker.incarnation + 1)
        successor.slots, successor.restarts = worker.slots, worker.restarts
        self.all[worker.index] = successor
        self.num_changes += 1
        worker.state = State.LOST
        worker.line.close()
        return successor

    def dismiss(self, worker: Worker) -> None:
        """End a worker at once."""
        self.num_changes += 1
        worker.state = State.LOST
        self.inbox.forget(worker.index)
        worker.running.kill()
        worker.line.close()

    def ended(self) -> Iterator[tuple[Worker, str]]:
        """The workers that have ended by themselves, and how; looked for now and then."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        for worker in list(self.all):
            worker.line.flush()
            how = None if worker.state is State.LOST else worker.running.how_it_ended()
            if how is not None:
                yield worker, how

    def close(self, grace_s: float) -> None:
        """Let the workers close their envs for ``grace_s``, then end them."""
        self._end_all(grace_s)
        self._undo.close()

    def _end_all(self, grace_s: float) -> None:
        alive = [worker for worker in self.all if worker.state is not State.LOST]
        if grace_s > 0:
            for worker in alive:
                worker.line.cancel_all()
                worker.line.send(Close())
        deadline = time.monotonic() + grace_s
        for worker in alive:
            # One that is not ready has no envs to close.
            if worker.is_ready:
                worker.running.wait(deadline)
        for worker in alive:
            self.dismiss(worker)
        self.all.clear()
