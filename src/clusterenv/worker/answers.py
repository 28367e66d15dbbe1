"""How a worker answers a message; calls without one are answered in :mod:`called_steps`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from clusterenv.arrays import Buffer
from clusterenv.plain.values import pack
from clusterenv.wire.channel import Channel, SharedChannel
from clusterenv.wire.marks import Marks
from clusterenv.wire.messages import Raised, Stepped
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

    def __init__(self, channel: SharedChannel, marks: Marks, place: int, rows: ArenaRows) -> None:
        super().__init__(channel, rows)
        self._shared, self._marks, self._place = channel, marks, place

    def _send_in_lockstep(self, reply: Stepped, frames: Sequence[Buffer]) -> None:
        self._shared.leave(reply, frames)
        self._mark(reply.request)
        self._shared.make_way()

    def give_error(self, raised: Raised) -> None:
        """The others need not think that this worker will be the last to answer."""
        super().give_error(raised)
        if raised.request:
            self._mark(raised.request)

    def _mark(self, request: int) -> None:
        if self._marks.put(self._place, request, says_more=True):
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
