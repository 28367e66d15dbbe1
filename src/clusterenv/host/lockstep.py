"""All workers are called to step, and answer, by numbers in shared memory alone.

This is what a loop around ``step(actions)`` repeats all the time, and where every microsecond of
the head is one that all workers wait. Such a call is not tracked as a pending request: it becomes
one per worker as soon as anything else has to be heard or done.
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
        """Whether a call waits for its answers, and is not tracked otherwise."""
        self._number, self._step = 0, Step(0, ())
        """The last call, and what was asked for by it."""
        self._begun_at = 0.0
        self._num_messages, self._calm_at = 0, _NEVER
        """Messages before the call, and before the last one if nothing but that came."""
        self._staffed: list[Worker] = []
        self._mailboxes: list[Mailbox] = []

    def step_again(self, number: int, step: Step, actions: Array) -> bool:
        """As :meth:`begin` and :meth:`finish`, if the last thing that happened was such a step.

        All workers wait for the head to go through this, and where it has the core of one of them,
        all that it touches drives that worker's envs out of the caches: it is flat, and short.

        Returns:
            True if all have answered. Else :meth:`finish` has to go on with it if it ``is_open``,
            and if not, nothing was begun.
        """
        workers, flags = self._workers, self._flags
        inbox = workers.inbox
        if self._calm_at != workers.num_messages or inbox.was_woken:
            return False
        self._num_messages, self._calm_at = self._calm_at, _NEVER
        if not inbox.may_spin:
            # Before anybody is called: who answers rings, so that there is no need to look first.
            flags.announce_sleep()
        self._call(number, step, actions)
        if not inbox.may_spin:
            is_rung = inbox.wait_for_bell(_LONGEST_SLEEP_S)
            flags.wake_up()
            if flags.are_silent(self._indices, number):
                self._close()
                return True
            # A bell may also ring late, when all are at work again.
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
        """All have answered, and nobody has anything to add: they can be called again like that."""
        self.is_open, self._calm_at = False, self._num_messages

    def begin(self, number: int, step: Step, actions: Array) -> bool:
        """Call all workers for ``step``; False if they cannot be."""
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
        """Wait until all have answered; False if there is more to hear, or not enough time."""
        inbox, flags = self._workers.inbox, self._flags
        deadline = time.monotonic() + timeout_s
        while inbox.wait(deadline - time.monotonic(), self._is_done):
            # The last but one rings, see AnswerFlags: the last is not far. But a bell may also
            # ring late, when all are at work again.
            is_done = self._is_done()
            if not is_done and not flags.are_several_missing(self._number):
                is_done = inbox.spin_until(self._is_done) and self._is_done()
            if is_done:
                # Whoever has said anything meanwhile is not silent.
                self._close()
                return True
            if not inbox.is_empty():
                break
        self.become_pending()
        return False

    def _is_done(self) -> bool:
        return self._flags.are_silent(self._indices, self._number)

    def become_pending(self) -> None:
        """From now on the call is like any other request."""
        if not self.is_open:
            return
        self.is_open = False
        for worker in self._staffed:
            worker.asked[self._number] = Asked(self._step, worker.slots, self._begun_at)

    @property
    def step(self) -> Step:
        """What the last call was for."""
        return self._step

    def answered(self) -> list[Worker]:
        """Who has answered, with rows alone, a call that became a request."""
        number, flags = self._number, self._flags
        return [
            worker
            for worker in self._staffed
            if number in worker.asked and flags.are_silent([worker.index], number)
        ]

    def take(self, worker: Worker) -> Asked:
        """The call that this worker has answered is over for it."""
        return worker.asked.pop(self._number)


def _can_be_called(worker: Worker) -> bool:
    # What it was asked before is told first: a fragment must not be overtaken by a later row.
    is_free = worker.is_ready and not worker.not_reset and not worker.asked
    return is_free and worker.line.can_call()
