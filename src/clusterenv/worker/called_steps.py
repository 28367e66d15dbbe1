"""Called, step, answer: what a worker does all the time while its head steps, by memory alone.

The head may have just used this core, and the envs are about to: whatever is done here is done with
cold caches, so there is little of it.
"""

from __future__ import annotations

from clusterenv.wire.arena import Arena
from clusterenv.wire.channel import SharedChannel
from clusterenv.wire.messages import PartCall, StepCall
from clusterenv.worker.rows import ArenaRows, Outcome
from clusterenv.worker.stepper import Stepper


class CalledSteps:
    """Steps of slots whose actions are in the arena, and whose results go there."""

    def __init__(
        self, channel: SharedChannel, arena: Arena, place: int, rows: ArenaRows, stepper: Stepper
    ) -> None:
        self._channel, self._arena, self._place = channel, arena, place
        self._rows, self._stepper = rows, stepper

    def answer(
        self, call: StepCall | PartCall, slots: tuple[int, ...], is_timed: bool = False
    ) -> Outcome:
        """Silently, by a mark, where the rows are all, and no warning came before them."""
        channel, rows, request = self._channel, self._rows, call.request
        channel.has_spoken = False
        actions, landing = rows.begin(request, slots, call.dtype)
        outcome = self._stepper.step(slots, actions, landing)
        if not outcome.landed:
            rows.write(request, slots, outcome)
        # Whoever takes the time wants to know when each answer came.
        says_more = is_timed or channel.has_spoken or rows.are_not_all(outcome)
        if says_more:
            channel.leave(rows.rest(request, outcome))
        if self._mark(call, says_more) or is_timed:
            channel.wake_head()
        channel.make_way()
        rows.keep()
        return outcome

    def _mark(self, call: StepCall | PartCall, says_more: bool) -> bool:
        """Whether the head is to be woken."""
        if isinstance(call, StepCall):
            return self._arena.marks.put(self._place, call.request, says_more)
        marks = self._arena.part_marks
        return marks.put(self._place, call.number, call.request, says_more)
