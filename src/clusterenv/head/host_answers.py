"""What a remote host says, checked, and turned into events for the session.

A request counts as answered only once its whole answer has been checked: a host that gives a
bad answer is lost, and its requests with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import lt
from typing import Any

import numpy as np
from msgspec.structs import replace

from clusterenv.arrays import Array, Buffer
from clusterenv.errors import ProtocolError
from clusterenv.head.remote_host import LONGEST_REASON, RemoteHost
from clusterenv.host.events import Event, Failed, Lost, Rows, Stuck, Values, WorkerWarned
from clusterenv.plain.row_layout import ResultRows, RowLayout
from clusterenv.plain.spaces import rows_of
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import Act, AnyRequest, Call, CountTime, Evaluate, SetAttr
from clusterenv.wire.arrays import read_array
from clusterenv.wire.messages import (
    Extra,
    FragmentMade,
    RequestFailed,
    RowsMade,
    ValuesMade,
    Warned,
    WorkerLost,
    WorkerStuck,
)
from clusterenv.wire.observation_codec import read_coded
from clusterenv.wire.reply_checks import ReplyChecks

LONGEST_TEXT = 20_000
"""How much of a text from a host is shown to the user."""


def events_in(
    host: RemoteHost, message: Any, frames: list[Buffer], sink: RowSink, checks: ReplyChecks
) -> Iterator[Event]:
    """The events of a message; ProtocolError if it is malformed."""
    match message:
        case RowsMade():
            if host.is_current(message.epoch):
                yield from _take_rows(host, message, frames, sink)
        case FragmentMade():
            if host.is_current(message.epoch):
                yield _take_fragment(host, message, frames, checks)
        case ValuesMade(request=number, slots=slots):
            if host.is_current(message.epoch):
                slots = ascending(slots)
                request = host.pending.answered(number, slots, Call, SetAttr, CountTime, Evaluate)
                yield Values(request, slots, message.values)
        case RequestFailed(request=number, slots=slots):
            if host.is_current(message.epoch):
                request = host.pending.answered(number, ascending(slots))
                where = f"{message.where:.{LONGEST_REASON}} of {host.whereabouts()}"
                yield Failed(request, slots, shortened(message.raised), where)
        case WorkerLost():
            if host.is_current(message.epoch):
                yield _take_loss(host, message)
        case WorkerStuck(worker=worker, text=text):
            yield Stuck(f"{worker:.50}", f"{host.whereabouts()}: {text:.{LONGEST_TEXT}}")
        case Warned(worker=worker, category=category, text=text):
            text = f"{text:.{LONGEST_TEXT}}"
            yield WorkerWarned(f"{host.name}, {worker:.50}", category, text)
        case _:
            raise ProtocolError(f"a host may not say {type(message).__name__} now")


def _take_rows(
    host: RemoteHost, message: RowsMade, frames: list[Buffer], sink: RowSink
) -> Iterator[Event]:
    slots = host.slots if message.slots is None else ascending(message.slots)
    if len(frames) != 1:
        raise ProtocolError(f"{len(frames)} frames of rows; it must be one")
    answered = host.pending.rows(slots)
    rows = _by_request(message.extras, answered)
    for one in rows:
        _check_complete(one, sink)
    sink.put(slots, frames[0])
    host.pending.done(answered)
    host.num_rows += len(slots)
    yield from rows


def _check_complete(rows: Rows, sink: RowSink) -> None:
    """Check that what the rows cannot hold came beside them."""
    if isinstance(rows.request, Act) and not rows.acted:
        raise ProtocolError("rows of a policy's step that do not say what it did")
    if sink.has_objects and not rows.objects:
        raise ProtocolError("rows without the observations that are no arrays")


def _take_fragment(
    host: RemoteHost, message: FragmentMade, frames: list[Buffer], checks: ReplyChecks
) -> FragmentPart:
    answers = _answers_in(message)
    request, *others = host.pending.collects_of(answers)
    if not len(set(message.names)) == len(message.arrays) == len(frames):
        raise ProtocolError(
            f"{len(message.names)} names and {len(message.arrays)} headers of {len(frames)} arrays"
        )
    slots = ascending(message.slots)
    arrays = _read_arrays(message, frames, checks, request.num_steps)
    part = FragmentPart(request, slots, message.version, arrays, joined=tuple(answers))
    checks.check_part(part)
    for other in others:
        checks.check_joined(part, other)
    host.pending.collected(answers)
    host.num_rows += len(part.slots) * request.num_steps
    return part


def _read_arrays(
    message: FragmentMade, frames: list[Buffer], checks: ReplyChecks, num_steps: int
) -> dict[str, Array]:
    codings = {coding.name: coding for coding in message.codings}
    if not codings.keys() <= set(message.names):
        raise ProtocolError("codings for arrays that are missing")
    arrays = {}
    for name, (dtype, shape), frame in zip(message.names, message.arrays, frames, strict=True):
        if name in codings:
            # This must come before anything of that size is allocated.
            kind = checks.kind_of_coded(name, dtype, shape, num_steps, len(message.slots))
            arrays[name] = read_coded(codings[name], shape, kind, frame)
        else:
            arrays[name] = read_array(dtype, shape, frame)
    return arrays


def _answers_in(message: FragmentMade) -> list[tuple[int, Sequence[int]]]:
    """The requests that a fragment answers, and for which of its slots each."""
    if not message.others:
        return [(message.request, message.slots)]
    named = [slot for _, slots in message.others for slot in ascending(slots)]
    rest = sorted(set(message.slots).difference(named))
    if len(rest) + len(named) != len(message.slots):
        raise ProtocolError("a fragment answers requests for slots that it does not have")
    return [(message.request, rest), *message.others]


def _take_loss(host: RemoteHost, message: WorkerLost) -> Lost:
    lost = set(message.slots)
    if not lost <= set(host.slots):
        raise ProtocolError("it lost slots that are not its own")
    # A fragment fails with any of its slots, of which some may still be there.
    beyond = [number for number, slots in message.voided if not lost.issuperset(slots)]
    are_forgiven = message.in_vain and all(map(host.pending.is_collect, beyond))
    if not lost or (beyond and not are_forgiven):
        raise ProtocolError("it does not answer for slots that it did not lose")
    voided = host.pending.voided(message.voided)
    where = f"{host.whereabouts()}: "
    return Lost(
        # A reset that is under way, and not void, will reach the replacement.
        tuple(sorted(lost - host.pending.to_be_reset())),
        f"{message.reason:.{LONGEST_REASON}}",
        f"{where}{message.obituary:.{LONGEST_TEXT}}",
        voided,
        message.error and f"{where}{message.error:.{LONGEST_TEXT}}",
        f"{message.worker:.50}",
        message.slot if message.slot in lost else None,
        message.in_vain,
    )


def ascending(slots: tuple[int, ...]) -> tuple[int, ...]:
    """``slots``, if they ascend; ProtocolError if not, or if there are none."""
    if not slots or not all(map(lt, slots, slots[1:])):
        raise ProtocolError("slots are missing or not in ascending order")
    return slots


def shortened(raised: Raised) -> Raised:
    """What was raised, with its texts cut to a readable length."""
    changes: dict[str, Any] = {
        name: f"{getattr(raised, name):.{LONGEST_TEXT}}"
        for name in ("module", "name", "text", "traceback", "action")
    }
    if len(raised.arguments) > LONGEST_TEXT:
        changes["arguments"] = b""
    return replace(raised, **changes)


def _by_request(
    extras: Sequence[Extra], answered: Sequence[tuple[AnyRequest, Sequence[int]]]
) -> list[Rows]:
    """Rows with the extras that belong to them, and rows without any."""
    if not extras:
        return [Rows(request, group) for request, group in answered]
    rows = []
    said_of = [slot for extra in extras for slot in ascending(extra.slots)]
    named = frozenset(said_of)
    if len(named) != len(said_of):
        raise ProtocolError("extras name a slot twice")
    left = set(named)
    for request, group in answered:
        own = set(group)
        for extra in extras:
            if own.issuperset(extra.slots):
                rows.append(Rows(request, extra.slots, extra.objects, extra.infos, extra.acted))
                left.difference_update(extra.slots)
        if rest := [slot for slot in group if slot not in named]:
            rows.append(Rows(request, rest))
    if left:
        raise ProtocolError("extras for slots without rows")
    return rows


class RowSink:
    """Where rows that come through a socket go: arrays of all slots."""

    def __init__(self, layout: RowLayout, num_envs: int) -> None:
        self._layout = layout
        self.has_objects = layout.has_objects
        """Whether some leaves of an observation are not arrays."""
        self.results: ResultRows = layout.view(bytearray(layout.size(num_envs)), num_envs)

    def put(self, slots: Sequence[int], frame: Buffer) -> None:
        """Take the rows of these slots (ascending); ProtocolError if their size does not fit."""
        if len(frame) != self._layout.size(len(slots)):
            raise ProtocolError(f"{len(frame)} bytes do not fit the rows of {len(slots)} slots")
        rows = rows_of(slots)
        came = self._layout.view(frame, len(slots))
        for target, source in zip(self.results.arrays, came.arrays, strict=True):
            # Booleans other than 0 and 1 would be copied as they are, and NumPy misbehaves on them.
            target[rows] = source.view(np.uint8) != 0 if source.dtype == np.bool_ else source
