"""Turns what workers say into events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError
from clusterenv.host.building import CouldNotBuildError
from clusterenv.host.events import Event, Failed, Lost, Rows, Values, WorkerWarned
from clusterenv.host.staff import Staff
from clusterenv.host.worker import Worker
from clusterenv.host.worker_requests import WorkerRequests
from clusterenv.host.workers import Workers
from clusterenv.memory.messages import EnvsBuilt, EnvWarned, RowsMapped, WorkerLeaving
from clusterenv.plain.values import dtype_of_plain_data
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.replies import Collected, Raised, Reply, Returned, Stepped, reply_to
from clusterenv.protocol.requests import Act, Collect


class Hearing:
    """Matches replies to requests, and lets workers get ready."""

    def __init__(self, workers: Workers, staff: Staff, asking: WorkerRequests) -> None:
        self._workers, self._staff, self._asking = workers, staff, asking

    def hear(
        self, worker: Worker, message: Any, frames: list[Buffer], number: int
    ) -> Iterator[Event]:
        """The events of a message; ``number`` releases its frames."""
        match message:
            case Reply():
                yield from self._answered(worker, message, frames, number)
            case EnvsBuilt(deal=deal) if deal == worker.deal:
                self._workers.note(worker, message)
                self._staff.lay_out(worker)
            case RowsMapped(error=error, deal=deal) if deal == worker.deal:
                self._workers.note(worker, message)
                if error:
                    raise ProtocolError(f"it cannot map the shared memory: {error}")
                worker.send_held_back(time.monotonic())
            case WorkerLeaving(reason=reason):
                worker.leaving = reason
                self._workers.num_changes += 1
            case EnvWarned(category=category, text=text):
                yield WorkerWarned(worker.name, category, text)
            case ProtocolError():
                raise message

    def _answered(
        self, worker: Worker, reply: Reply, frames: list[Buffer], number: int
    ) -> Iterator[Event]:
        asked = worker.asked.get(reply.request)
        if asked is None:
            # A late reply to a request that was abandoned.
            if number:
                worker.line.release(number)
            if isinstance(reply, Raised) and not reply.request:
                yield from self._could_not_begin(worker, reply)
            return
        request, slots = asked.request, asked.slots
        if not isinstance(reply, Raised | reply_to(request)):
            raise ProtocolError(f"{type(reply).__name__} answers no {type(request).__name__}")
        event: Event
        match reply:
            case Stepped():
                slots = asked.part(reply.slots)
                event = Rows(request, slots, reply.objects, reply.infos, reply.acted)
            case Returned():
                event = Values(request, slots, reply.values)
            case Collected():
                assert isinstance(request, Collect)
                event = _fragment_part(worker, request, slots, reply, frames, number)
            case _:
                assert isinstance(reply, Raised)
                event = Failed(request, slots, reply, worker.whereabouts())
        # Only once it has been read: a bad answer costs the worker, and voids the request.
        worker.answered(reply.request, slots)
        yield event
        if isinstance(request, Act | Collect):
            self._asking.begin_with_policy()

    def last_answers(self, worker: Worker) -> list[Event]:
        """The answers of a worker that has ended, which have not been heard yet."""
        events: list[Event] = []
        # Malformed messages do not count, nor does anything after them.
        with contextlib.suppress(Exception):
            while (received := worker.line.receive()) is not None:
                message, frames, number = received
                is_answer = isinstance(message, Reply) and message.request in worker.asked
                if is_answer or isinstance(message, EnvWarned):
                    events += self.hear(worker, message, frames, number)
        # Only now: a part that was answered silently may come after one with a message.
        return [*events, *self._asking.silent_answers()]

    def _could_not_begin(self, worker: Worker, raised: Raised) -> Iterator[Event]:
        """Give up this worker's slots, and pass the user code's own error to the waiting request.

        Building envs may succeed the next time: if that is what failed, the worker counts as lost.
        """
        if not worker.is_ready:
            raise CouldNotBuildError(raised, worker.whereabouts())
        voided = self._asking.void(worker)
        for one in voided[:1]:
            yield Failed(one.request, one.slots, raised, worker.whereabouts())
        text = f"{worker.name} could not take what it was sent: {raised.name}: {raised.text}"
        yield Lost(worker.slots, text, text, voided[1:], error=text)


def _fragment_part(
    worker: Worker,
    request: Collect,
    slots: tuple[int, ...],
    reply: Collected,
    frames: list[Buffer],
    number: int,
) -> FragmentPart:
    """Views of the worker's memory; the worker gets it back when they are released."""
    arrays = {
        name: np.frombuffer(frame, dtype_of_plain_data(dtype)).reshape(shape)
        for name, (dtype, shape), frame in zip(reply.names, reply.arrays, frames, strict=True)
    }
    line = worker.line
    return FragmentPart(request, slots, reply.version, arrays, lambda: line.release(number))
