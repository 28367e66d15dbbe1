"""All workers are called to step, and answer, by numbers in shared memory alone.

A loop around ``step(actions)`` does this all the time, and all workers wait during every
microsecond of the head's. Such a call is not tracked as a pending request; it becomes one per
worker as soon as anything else has to be handled.
"""

from __future__ import annotations

import time

from clusterenv.arrays import Array
from clusterenv.host.inbox import SPIN_S
from clusterenv.host.worker import Asked, Worker
from clusterenv.host.workers import Workers
from clusterenv.memory.answer_flags import MAY_SPIN
from clusterenv.memory.mailbox import Mailbox
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.protocol.requests import Step
from clusterenv.stopwatch import WAIT

_LONGEST_SLEEP_S = 0.1
_NEVER = -1


class Lockstep:
    """Calls to all workers with slots, and their answers."""

    def __init__(self, rows: SharedRows, workers: Workers, num_workers: int) -> None:
        self._rows, self._flags, self._workers = rows, rows.flags, workers
        self._indices = list(range(num_workers))
        self.is_open = False
        """Whether a call waits for answers without being tracked as a request."""
        self._number, self._step = 0, Step(0, ())
        """The number of the last call, and its step."""
        self._begun_at = 0.0
        self._num_messages, self._calm_at = 0, _NEVER
        """The messages before the call; and before the last one, if nothing else has come since."""
        self._staffed: list[Worker] = []
        self._mailboxes: list[Mailbox] = []

    def step_again(self, number: int, step: Step, actions: Array) -> bool:
        """Like :meth:`begin` and :meth:`finish`, if the last thing that happened was such a step.

        All workers wait while the head goes through this. If it runs on the core of one of them,
        whatever it touches evicts that worker's envs from the caches; so it is flat and short.

        Returns:
            True if all have answered. If not, :meth:`finish` must continue it if it ``is_open``;
            otherwise nothing was begun.
        """
        workers, flags = self._workers, self._flags
        inbox = workers.inbox
        if self._calm_at != workers.num_messages or inbox.was_woken:
            return False
        self._num_messages, self._calm_at = self._calm_at, _NEVER
        if not inbox.may_spin:
            # Before the call: workers that answer then ring, so there is no need to look first.
            flags.announce_sleep()
        self._call(number, step, actions)
        if not inbox.may_spin:
            is_rung = inbox.wait_for_bell(_LONGEST_SLEEP_S)
            flags.wake_up()
            if flags.are_silent(self._indices, number):
                self._close()
                return True
            # The bell may also be an old one, while all are at work again.
            if not is_rung or flags.are_several_missing(number):
                return False
        watch = inbox.stopwatch
        before = watch.begin(WAIT) if watch.is_on else ""
        is_done = flags.look_out(self._indices, number, SPIN_S)
        if before:
            watch.begin(before)
        if is_done:
            self._close()
        return is_done

    def _close(self) -> None:
        """End a call that all have answered with rows alone: it can be repeated like that."""
        self.is_open, self._calm_at = False, self._num_messages

    def begin(self, number: int, step: Step, actions: Array) -> bool:
        """Call all workers for ``step``; False if that is not possible."""
        self._num_messages, self._calm_at = self._workers.num_messages, _NEVER
        self._staffed = self._workers.all[: len(self._indices)]
        if not (MAY_SPIN and all(_can_be_called(worker) for worker in self._staffed)):
            return False
        self._mailboxes = [worker.line.mailbox for worker in self._staffed]
        self._call(number, step, actions)
        return True

    def _call(self, number: int, step: Step, actions: Array) -> None:
        dtype = self._rows.put_actions(actions)
        self._number, self._step, self._begun_at = number, step, time.monotonic()
        self.is_open = True
        if Mailbox.call_all(self._mailboxes, number, dtype):
            for worker in self._staffed:
                worker.line.wake_if_asleep()

    def finish(self, timeout_s: float) -> bool:
        """Wait until all have answered; False if there is more to handle, or time is up."""
        inbox, flags = self._workers.inbox, self._flags
        deadline = time.monotonic() + timeout_s
        while inbox.wait(deadline - time.monotonic(), self._is_done):
            # The last worker but one rings, see AnswerFlags, so the last one is not far. But the
            # bell may also be an old one, while all are at work again.
            is_done = self._is_done()
            if not is_done and not flags.are_several_missing(self._number):
                is_done = inbox.spin_until(self._is_done) and self._is_done()
            if is_done:
                # Workers that sent a message meanwhile do not count as silent.
                self._close()
                return True
            if not inbox.is_empty():
                break
        self.become_pending()
        return False

    def _is_done(self) -> bool:
        return self._flags.are_silent(self._indices, self._number)

    def become_pending(self) -> None:
        """Track the call like any other request from now on."""
        if not self.is_open:
            return
        self.is_open = False
        for worker in self._staffed:
            worker.asked[self._number] = Asked(self._step, worker.slots, self._begun_at)

    @property
    def step(self) -> Step:
        """The step of the last call."""
        return self._step

    def answered(self) -> list[Worker]:
        """The workers that answered, with rows alone, a call that has become a request."""
        number, flags = self._number, self._flags
        return [
            worker
            for worker in self._staffed
            if number in worker.asked and flags.are_silent([worker.index], number)
        ]

    def take(self, worker: Worker) -> Asked:
        """End the call for this worker, which has answered it."""
        return worker.asked.pop(self._number)


def _can_be_called(worker: Worker) -> bool:
    # Earlier requests come first: a later row must not overtake a fragment.
    is_free = worker.is_ready and not worker.not_reset and not worker.asked
    return is_free and worker.line.can_call()
