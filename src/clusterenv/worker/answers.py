"""How a worker answers: by a message, or silently where its rows are all there is to say."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from clusterenv.wire.arena import Arena
from clusterenv.wire.channel import Channel, SharedChannel
from clusterenv.wire.codec import Buffer
from clusterenv.wire.messages import PartCall, Raised, StepCall, Stepped
from clusterenv.wire.values import pack
from clusterenv.worker.rows import ArenaRows, Outcome, Rows


class Answers:
    """Of a worker that shares no memory with the head."""

    def __init__(self, channel: Channel, rows: Rows) -> None:
        self._channel, self.rows = channel, rows

    def give(self, request: int, slots: tuple[int, ...], outcome: Outcome) -> None:
        """What stepping or resetting these slots gave."""
        self._channel.send(*self.rows.reply(request, slots, outcome))

    def give_in_lockstep(
        self,
        request: int,
        slots: tuple[int, ...],
        outcome: Outcome,
        acted: dict[str, Any] | None = None,
    ) -> None:
        """All workers were asked to step all their slots; ``acted``: what the policy did."""
        reply, frames = self.rows.reply(request, slots, outcome)
        if acted is not None:
            reply.acted = pack(acted, allow_pickle=False)
        self._send_in_lockstep(reply, frames)

    def _send_in_lockstep(self, reply: Stepped, frames: Sequence[Buffer]) -> None:
        self._channel.send(reply, frames)

    def give_error(self, raised: Raised) -> None:
        """Something went wrong."""
        self._channel.send(raised)


class SharedAnswers(Answers):
    """Of a worker whose rows are in memory that it shares with the head."""

    def __init__(self, channel: SharedChannel, arena: Arena, place: int, rows: ArenaRows) -> None:
        super().__init__(channel, rows)
        self._shared, self._arena, self._place, self._rows = channel, arena, place, rows

    def _send_in_lockstep(self, reply: Stepped, frames: Sequence[Buffer]) -> None:
        self._shared.leave(reply, frames)
        self._mark(reply.request)
        # The head may wait for this very core.
        os.sched_yield()

    def begin(self) -> None:
        """Of a call: nothing has been said yet."""
        self._shared.has_spoken = False

    def give_to_call(
        self, call: StepCall | PartCall, slots: tuple[int, ...], outcome: Outcome, is_timed: bool
    ) -> None:
        """Silently, by a mark, where the rows are all, and no warning came before them."""
        rows, marks, request = self._rows, self._arena.marks, call.request
        rows.write(request, slots, outcome)
        # Whoever takes the time wants to know when each answer came.
        says_more = is_timed or self._shared.has_spoken or rows.are_not_all(outcome)
        if says_more:
            self._shared.leave(rows.rest(request, outcome))
        if isinstance(call, StepCall):
            is_to_wake = marks.put(self._place, request, says_more)
        else:
            parts = self._arena.part_marks
            is_to_wake = parts.put(self._place, call.number, request, says_more)
        if is_to_wake or is_timed:
            self._shared.wake_head()
        os.sched_yield()

    def give_error(self, raised: Raised) -> None:
        """The others need not think that this worker will be the last to answer."""
        super().give_error(raised)
        if raised.request:
            self._mark(raised.request)

    def _mark(self, request: int) -> None:
        if self._arena.marks.put(self._place, request, says_more=True):
            self._shared.wake_head()


def raised(
    request: int, error: BaseException, slot: int | None = None, action: Any = None
) -> Raised:
    """What the head needs to raise ``error`` there."""
    kind = type(error)
    try:
        # Not `args`: an OSError keeps its file name elsewhere.
        reduced: Any = error.__reduce__()
        arguments = pack(reduced[1], allow_pickle=False)
    except Exception:  # even its repr may raise
        arguments = b""
    return Raised(
        request,
        slot,
        kind.__module__,
        kind.__qualname__,
        arguments,
        _text(lambda: str(error)),
        _text(lambda: "".join(traceback.format_exception(error))),
        "" if action is None else _text(lambda: repr(action)),
    )


def _text(tell: Callable[[], str]) -> str:
    """What ``tell`` says, fit for the wire, whatever the user's object makes of it."""
    try:
        return tell().encode("utf-8", "backslashreplace").decode()
    except Exception as error:
        return f"<cannot be printed: {type(error).__name__}>"
