"""The worker's hot loop while the head steps: a call, a step, an answer, by memory alone.

The host may have just used this core, and the envs are about to: everything here runs with cold
caches, so there is little of it.
"""

from __future__ import annotations

from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.messages import PartCall, StepCall
from clusterenv.memory.part_times import ENV, IDLE, SERIALISE
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.worker.rows import Outcome, RowWriter
from clusterenv.worker.stepper import Stepper


class CalledSteps:
    """Steps of slots whose actions and results are in shared rows."""

    def __init__(
        self, line: WorkerEnd, shared: SharedRows, worker: int, rows: RowWriter, stepper: Stepper
    ) -> None:
        self._line, self._worker = line, worker
        self._flags, self._part_flags = shared.flags, shared.part_flags
        self._rows, self._stepper, self._times = rows, stepper, line.mailbox.times

    def answer(self, call: StepCall | PartCall, slots: tuple[int, ...]) -> Outcome:
        """Step, and answer silently by a flag if the rows say all and no message was sent."""
        line, rows, request = self._line, self._rows, call.request
        times, is_timed = self._times, self._times.is_on
        if is_timed:
            times.take_up(SERIALISE)
        actions, landing = rows.begin(request, slots, call.dtype)
        if is_timed:
            times.begin(ENV)
        outcome = self._stepper.step(slots, actions, landing)
        if is_timed:
            times.begin(SERIALISE)
        if not outcome.landed:
            rows.write(request, slots, outcome)
        says_more = line.has_spoken or rows.are_not_all(outcome)
        if says_more:
            line.leave(rows.rest(request, outcome))
        line.has_spoken = False
        if is_timed:
            # Before the flag: the host may call again before this worker goes on.
            times.answer()
        if self._raise_flag(call, says_more):
            line.wake_host()
        line.make_way()
        if is_timed:
            times.begin(SERIALISE)
        rows.keep()
        if is_timed:
            times.begin(IDLE)
        return outcome

    def _raise_flag(self, call: StepCall | PartCall, says_more: bool) -> bool:
        """Raise the flag; returns whether the host must be woken."""
        if isinstance(call, StepCall):
            return self._flags.put(self._worker, call.request, says_more)
        return self._part_flags.put(self._worker, call.number, call.request, says_more)
