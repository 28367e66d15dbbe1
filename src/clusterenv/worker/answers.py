"""A worker's answers to messages; calls without a message are answered in ``called_steps.py``."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from clusterenv.memory.answer_flags import AnswerFlags
from clusterenv.memory.line import WorkerEnd
from clusterenv.plain.values import pack
from clusterenv.protocol.replies import Raised
from clusterenv.worker.rows import Outcome, RowWriter
from clusterenv.worker.stepper import UserCodeError


class Answers:
    """The answers of a worker whose rows are in memory shared with its host."""

    def __init__(self, line: WorkerEnd, flags: AnswerFlags, worker: int, rows: RowWriter) -> None:
        self._line, self._flags, self._worker, self.rows = line, flags, worker, rows

    def give(self, request: int, slots: tuple[int, ...], outcome: Outcome) -> None:
        """Answer with the results of stepping or resetting these slots."""
        self.rows.write(request, slots, outcome)
        self._line.send(self.rows.rest(request, outcome))
        self.rows.keep()

    def give_some(self, request: int, slots: tuple[int, ...], outcome: Outcome) -> None:
        """Like :meth:`give`, for some slots of a request; the others follow."""
        self.rows.write(request, slots, outcome)
        reply = self.rows.rest(request, outcome)
        reply.slots = slots
        self._line.send(reply)
        self.rows.keep()

    def give_acted(
        self, request: int, slots: tuple[int, ...], outcome: Outcome, acted: dict[str, Any]
    ) -> None:
        """Like :meth:`give`, for a step with a policy; ``acted`` is what the policy did."""
        self.rows.write(request, slots, outcome)
        reply = self.rows.rest(request, outcome)
        reply.acted = pack(acted, allow_pickle=False)
        self._line.leave(reply)
        self._raise_flag(request)
        self._line.make_way()
        self.rows.keep()

    def give_error(self, raised: Raised) -> None:
        """Send an error, and raise the flag, so that others do not count on this worker."""
        self._line.send(raised)
        if raised.request:
            self._raise_flag(raised.request)

    def _raise_flag(self, request: int) -> None:
        if self._flags.put(self._worker, request, says_more=True):
            self._line.wake_host()


def raised(request: int, error: BaseException, where: UserCodeError | None = None) -> Raised:
    """What the head needs to raise ``error`` there."""
    kind, where = type(error), where or UserCodeError(None)
    action = where.action
    try:
        # Not `args`: an OSError keeps its file name elsewhere.
        reduced: Any = error.__reduce__()
        arguments = pack(reduced[1], allow_pickle=False)
    except Exception:  # even its repr may raise
        arguments = b""
    return Raised(
        request,
        where.slot,
        kind.__module__,
        kind.__qualname__,
        arguments,
        _text(lambda: str(error)),
        _text(lambda: "".join(traceback.format_exception(error))),
        "" if action is None else _text(lambda: repr(action)),
        where.by_policy,
    )


def _text(tell: Callable[[], str]) -> str:
    """The text that ``tell`` returns, fit for the wire, whatever the user's object does."""
    try:
        return tell().encode("utf-8", "backslashreplace").decode()
    except Exception as error:
        return f"<cannot be printed: {type(error).__name__}>"
