"""Requests about slots, passed on to the workers that own them."""

from __future__ import annotations

import time
from collections import deque

from clusterenv.arrays import Array
from clusterenv.host.events import Event, Lost, PullWanted, Rows, Values, Voided
from clusterenv.host.late_answers import LateAnswers
from clusterenv.host.lockstep import Lockstep
from clusterenv.host.part_calls import PartCalls
from clusterenv.host.policy_queue import PolicyQueue, Waiting
from clusterenv.host.staff import Staff
from clusterenv.host.weights import HostWeights, PulledWeights
from clusterenv.host.worker import Asked, Worker
from clusterenv.host.workers import Workers
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.values import pack
from clusterenv.protocol.requests import (
    Act,
    AnyRequest,
    Collect,
    CountTime,
    Newest,
    PolicyRequest,
    Reset,
    Step,
    narrow,
)


class WorkerRequests:
    """Tracks which worker was asked what, by message or by numbers in shared memory."""

    def __init__(
        self,
        workers: Workers,
        staff: Staff,
        rows: SharedRows,
        weights: HostWeights,
        ready: list[int],
        queues_ahead: bool,
    ) -> None:
        self._workers, self._staff, self._rows, self._ready = workers, staff, rows, ready
        self.lockstep = Lockstep(rows, workers, staff.size)
        self.parts = PartCalls(rows.part_flags, workers, ready)
        self._weights, self._queues_ahead = weights, queues_ahead
        self._policies = PolicyQueue(weights, queues_ahead)
        self.events: deque[Event] = deque()
        """Events that asking itself caused."""
        self._late: LateAnswers | None = None
        """Used while somebody profiles."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        if self.lockstep.is_open or self.parts.num_open or self._policies.is_waiting:
            return False
        return not any(worker.asked for worker in self._staff.members)

    def step_again(self, step: Step, actions: Array) -> bool:
        """Step every slot and wait, in the usual case only; see :class:`Lockstep`."""
        if self._late is not None:
            self._late.note(self._staff.members)
        self._workers.last_number = number = self._workers.last_number + 1
        return self.lockstep.step_again(number, step, actions)

    def ask(self, request: AnyRequest) -> None:
        """Request work on some slots."""
        if self._late is not None:
            self._late.note(self._staff.members)
        number = self._new_number()
        for worker, asked, part in self._staff.split(request.slots):
            if slots := self._still_there(worker, request, asked):
                self._ask_in_order(worker, request, narrow(request, number, slots, part))
        if isinstance(request, PolicyRequest):
            self._weights.learn(request.newest)
            self.begin_with_policy()

    def step(self, step: Step, actions: Array) -> None:
        """Request a step of some slots; ``actions`` has a row for each of them."""
        if self._late is not None:
            self._late.note(self._staff.members)
        are_all = step.together and len(step.slots) == len(self._staff.slots)
        can_lock = are_all and not self._policies.is_waiting
        if can_lock and self.lockstep.begin(self._new_number(), step, actions):
            return
        dtype, now = self._rows.put_actions(actions, step.slots), time.monotonic()
        for worker, asked, _ in self._staff.split(step.slots, step.num_parts):
            slots = self._still_there(worker, step, asked) if worker.not_reset else asked
            if not slots:
                continue
            # Each part has its own number, because a worker answers for one after the other.
            number = self._new_number()
            if self._policies.is_waiting_for(worker) or not self.parts.call(
                worker, number, step, slots, dtype, now
            ):
                self._ask_in_order(worker, step, Step(number, slots, dtype))
        self.parts.ring()

    def count_time(self, request: CountTime) -> None:
        """Have workers time what they do, through shared memory, without disturbing them."""
        members = self._staff.members
        seconds = [worker.count_time(request.on) for worker in members]
        if self._late is not None:
            self._late.note(members)
            for worker, counted in zip(members, seconds, strict=True):
                if counted:
                    counted.update(behind=self._late.seconds_of(worker))
        self._late = LateAnswers() if request.on else None
        values = pack(seconds, allow_pickle=False)
        self.events.append(Values(request, request.slots, values))

    def _new_number(self) -> int:
        self._workers.last_number += 1
        return self._workers.last_number

    def _still_there(
        self, worker: Worker, request: AnyRequest, slots: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Those of these slots that can do it; the envs of the others were lost, which is told."""
        if isinstance(request, Reset):
            worker.not_reset.difference_update(slots)
        gone = tuple(slot for slot in slots if slot in worker.not_reset)
        if not (gone and isinstance(request, Step | Act | Collect)):
            return slots
        # A fragment has all slots of a worker. In a step, those that were reset alone go on.
        undone = slots if isinstance(request, Collect) else gone
        reason = "it replaces a lost worker"
        voided = (Voided(request, undone),)
        self.events.append(Lost(gone, reason, reason, voided, in_vain=True))
        return tuple(slot for slot in slots if slot not in undone)

    def _ask_in_order(self, worker: Worker, request: AnyRequest, message: AnyRequest) -> None:
        """Pass on ``message``, this worker's share, so that it overtakes no fragment."""
        number, slots = message.request, message.slots
        if isinstance(request, PolicyRequest) or self._policies.is_waiting_for(worker):
            # The next step must not be repeated in the quick way before this.
            self._workers.num_messages += 1
            self._policies.add(worker, Waiting(number, request, message, slots))
        else:
            self._ask(worker, number, request, message, slots)

    def _ask(
        self,
        worker: Worker,
        number: int,
        request: AnyRequest,
        message: AnyRequest,
        slots: tuple[int, ...],
    ) -> None:
        self._workers.send(worker, message)
        worker.asked[number] = Asked(request, slots, time.monotonic())

    # Policies.

    def announce(self, newest: Newest) -> None:
        """Hear of a new version, and decide whether to pull it."""
        self._weights.learn(newest)
        if self._queues_ahead and not (self._weights.pulls_for or self._weights.waits_for_policy):
            # Workers begin with queued fragments without coming back here first.
            wanted = self._weights.wanted_for(None)
            if wanted is not None:
                self.events.append(wanted)

    def take_weights(self, pulled: PulledWeights) -> None:
        """Take weights that were wanted."""
        self._policies.take_weights(pulled)
        self.begin_with_policy()

    def begin_with_policy(self) -> None:
        """Pass on what no longer has to wait for weights or for its worker."""
        for begun in self._policies.begin(self._staff.members):
            if isinstance(begun, PullWanted):
                self.events.append(begun)
                return
            worker, waiting = begun
            policy = self._weights.policy
            assert policy is not None
            if worker.policy_id != policy.policy_id:
                worker.policy_id = policy.policy_id
                self._workers.send(worker, policy)
            message = self._weights.stamped(waiting.message)
            self._ask(worker, waiting.number, waiting.request, message, waiting.slots)

    # What will not be answered.

    def listen(self) -> None:
        """Track calls by numbers like any other request from now on."""
        self.lockstep.become_pending()
        self.parts.become_pending()

    def has_silent_answers(self) -> bool:
        """Whether workers have answered calls, with nothing to add to their rows."""
        return bool(self.parts.take() or self.lockstep.answered())

    def silent_answers(self) -> list[Rows]:
        """The answers of workers to calls, with nothing to add to their rows."""
        self.parts.take()
        answered = [self.lockstep.take(worker) for worker in self.lockstep.answered()]
        return [Rows(asked.request, asked.slots) for asked in answered]

    def void(self, worker: Worker) -> tuple[Voided, ...]:
        """Give up what the worker was asked or was to be asked; returns it."""
        waiting = [Voided(one.request, one.slots) for one in self._policies.forget(worker)]
        return (*worker.void(), *waiting)

    def abandon(self) -> set[int]:
        """Ignore the answers to all requests so far, and do not let workers begin with them.

        Returns:
            The slots whose worker was never asked, because it is not ready yet.
        """
        self.listen()
        self.events.clear()
        never_begun: set[int] = set()
        for worker in self._staff.members:
            worker.line.cancel_up_to(self._workers.last_number)
            waited = self._policies.forget(worker)
            asked = [*(one.slots for one in worker.void()), *(one.slots for one in waited)]
            if not worker.is_ready:
                # The reset that its envs need may be among it.
                worker.not_reset.update(worker.slots if asked else ())
                never_begun.update(*asked)
            resets = [one.slots for one in waited if isinstance(one.request, Reset)]
            worker.not_reset.update(*resets)
            never_begun.update(*resets)
        self._policies.give_up_pull()
        self._ready.clear()
        return never_begun
