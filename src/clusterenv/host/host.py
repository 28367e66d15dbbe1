"""A host: the envs of one machine, driven through shared memory.

It takes requests about slots, splits them among its workers, and reports the results as events. If
envs run on the head's own machine, the head has one as an object; on another machine the same
object is driven by :mod:`clusterenv.wire.serving`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.host.building import CouldNotBuildError
from clusterenv.host.events import Event, Failed, Lost, Rows
from clusterenv.host.hearing import Hearing
from clusterenv.host.losses import has_to_go, overdue
from clusterenv.host.plan import Plan, Spaces
from clusterenv.host.slowness import find_frozen, find_stuck
from clusterenv.host.staff import Staff
from clusterenv.host.weights import HostWeights, PulledWeights
from clusterenv.host.worker import Worker, WorkerState
from clusterenv.host.worker_requests import WorkerRequests
from clusterenv.host.workers import Workers
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import AnyRequest, CountTime, Newest, Step
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.sync.rules import SyncRule

_CHECK_EVERY_S = 0.5
_TICK_S = 0.1


class LocalHost:
    """The running envs of one machine.

    Args:
        name: Its name in messages and in the ledger.
        workers: Its workers, which have built their envs.
        plan: What they run.
        spaces: What all envs of the run agree on.
        sync_rule: Decides whether to pull new weights.
        ready: Receives the slots that were stepped in parts and answered without a message.
        queues_ahead: Whether workers get their next fragments before they finish the last ones,
            because nobody drives this object while the user's thread computes.
    """

    def __init__(
        self,
        name: str,
        workers: Workers,
        plan: Plan,
        spaces: Spaces,
        sync_rule: SyncRule,
        ready: list[int],
        queues_ahead: bool,
    ) -> None:
        self.name, self.slots, self._workers = name, plan.slots, workers
        self._staff = Staff(workers, plan, spaces)
        self.rows = self._staff.map_rows()
        inbox = self._inbox = workers.inbox
        inbox.flags = self.rows.flags
        # An engine's threads want all cores: a waiter that spins would take one from them.
        inbox.may_spin = inbox.may_spin and not plan.has_own_threads
        stores = workers.weights, workers.evaluation_weights
        weights = HostWeights(sync_rule, *stores, plan.first_slot)
        self._asking = WorkerRequests(workers, self._staff, self.rows, weights, ready, queues_ahead)
        self._lockstep, self._parts = self._asking.lockstep, self._asking.parts
        self._hearing = Hearing(workers, self._staff, self._asking)
        self._next_check = 0.0
        for worker in self._staff.members:
            self._staff.lay_out(worker)

    @property
    def staff(self) -> list[Worker]:
        """The workers with slots."""
        return self._staff.members

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers with slots as they are now."""
        return tuple(worker.status(self.name) for worker in self._staff.members)

    @property
    def is_ready(self) -> bool:
        """Whether all workers are ready for work."""
        return self._staff.is_ready

    @property
    def num_silent_rows(self) -> int:
        """How many rows of parts have been made without an event."""
        return self._parts.num_rows

    # Asking.

    def step_again(self, step: Step, actions: Array) -> bool:
        """Step every slot and wait, in the usual case only; see ``host/lockstep.py``."""
        return self._asking.step_again(step, actions)

    @property
    def is_in_lockstep(self) -> bool:
        """Whether a step of all slots is under way, and nothing else has happened since."""
        return self._lockstep.is_open

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return self._asking.is_idle

    def ask(self, request: AnyRequest, actions: Array | None = None) -> None:
        """Request work on some slots; ``actions`` has a row for each slot of a :class:`Step`."""
        if isinstance(request, Step) and actions is not None:
            self._asking.step(request, actions)
        elif isinstance(request, CountTime):
            self._asking.count_time(request)
        else:
            self._asking.ask(request)

    def wait_for_parts(self, num_slots: int, timeout_s: float) -> bool:
        """Wait until this many slots are ready; False if something else must be handled first."""
        if not self._parts.wait_for(num_slots, min(timeout_s, _CHECK_EVERY_S)):
            return False
        # Other workers may be lost while some go on.
        return time.monotonic() < self._next_check

    def announce(self, newest: Newest) -> None:
        """Hear of a new version; the host decides whether to pull it."""
        self._asking.announce(newest)

    def take_weights(self, pulled: PulledWeights) -> None:
        """Take weights that were wanted."""
        self._asking.take_weights(pulled)

    def abandon(self) -> set[int]:
        """Ignore the answers to all requests so far; returns the slots it never got to."""
        return self._asking.abandon()

    def read_actions(self, step: Step, frame: Buffer) -> Array:
        """The actions of a step that came as bytes; ProtocolError if they do not fit."""
        return self.rows.read_actions(step.dtype, len(step.slots), frame)

    # Hearing.

    def listen(self) -> None:
        """Have every answer wake the sleeping thread from now on."""
        self._asking.listen()

    def wake(self) -> None:
        """End a wait; may be called from any thread."""
        self._inbox.wake()

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Wait for something to happen, and yield the events."""
        asking, lockstep = self._asking, self._lockstep
        if lockstep.is_open and not asking.events:
            if lockstep.finish(min(timeout_s, _TICK_S)):
                yield Rows(lockstep.step, self.slots)
                return
            timeout_s = 0.0
        self._workers.num_messages += 1
        self._parts.become_pending()
        if not asking.events:
            self._inbox.wait(min(timeout_s, _TICK_S), asking.has_silent_answers)
        yield from self.heard()

    def heard(self) -> Iterator[Event]:
        """The events that are there now, without waiting."""
        workers, events, inbox = self._workers, self._asking.events, self._inbox
        inbox.was_woken = False
        while events:
            yield events.popleft()
        for index, message, frames, number in inbox.take():
            worker = workers.all[index]
            try:
                yield from self._hearing.hear(worker, message, frames, number)
            except CouldNotBuildError as error:
                yield from self._lose(worker, f"it could not build its envs: {error}", error.raised)
            except Exception as error:
                reason = f"it broke the protocol: {ProtocolError.of(error)}"
                yield from self._lose(worker, reason, is_believed=False)
        yield from self._asking.silent_answers()
        yield from self._find_losses()
        while events:
            yield events.popleft()

    # Losses.

    def _find_losses(self) -> Iterator[Event]:
        for worker, how in self._workers.ended():
            if worker.slots:
                yield from self._lose(worker, how)
        members = self._staff.members
        for worker in members:
            if has_to_go(worker):
                yield from self._lose(worker, worker.leaving)
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_EVERY_S
            limits = self._workers.limits
            stuck = list(find_stuck(members, limits, now))
            late = [one for find in (overdue, find_frozen) for one in find(members, limits, now)]
            if (stuck or late) and self._workers.is_debugging():
                for worker in members:
                    worker.restart_clocks(now)
                stuck, late = [], []
            yield from stuck
            for worker, reason in late:
                yield from self._lose(worker, reason)
        for worker, reason in self._workers.start_due():
            yield from self._lose(worker, reason)

    def _lose(
        self,
        worker: Worker,
        reason: str,
        raised: Raised | None = None,
        *,
        is_believed: bool = True,
    ) -> Iterator[Event]:
        """Replace a lost worker, and say which requests will not be answered.

        If building its envs ``raised`` an error and it is not replaced, the first waiting request
        fails with that error.
        """
        if worker.state is WorkerState.LOST:
            return
        obituary = worker.obituary(reason)
        # From here on it cannot write: what it has answered counts, and the rest is taken back.
        worker.running.kill()
        self._asking.listen()
        answered = self._hearing.last_answers(worker) if is_believed else []
        self.rows.expect_no_answer(worker.index)
        for number, one in worker.asked.items():
            self.rows.take_back(one.slots, worker.index, number)
        worked_s, voided = worker.worked_s(time.monotonic()), self._asking.void(worker)
        refusal = self._staff.replace(worker, reason, worked_s)
        # A policy may have waited for what this worker did with the previous one.
        self._asking.begin_with_policy()
        yield from answered
        if refusal and raised is not None and voided:
            yield Failed(voided[0].request, voided[0].slots, raised, worker.whereabouts())
            voided = voided[1:]
        error = refusal and f"{obituary}\n{refusal}"
        yield Lost(worker.slots, reason, obituary, voided, error, worker.name, worker.current_slot)
