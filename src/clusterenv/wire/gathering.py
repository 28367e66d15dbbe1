"""Gathers what a host's workers have done, so that one message brings all of it to the head."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.arrays import Buffer
from clusterenv.host.events import Rows
from clusterenv.host.host import LocalHost
from clusterenv.protocol.fragments import FragmentPart, join_parts
from clusterenv.protocol.requests import Act, AnyRequest, Collect, Request, Reset, Step
from clusterenv.wire.fragment_window import FragmentWindow, group_for_messages
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.messages import Extra, FragmentMade, RowsMade
from clusterenv.wire.observation_codec import ObservationCodec


class _Wanted:
    """A request whose answers are wanted all at once."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.missing = set(request.slots)
        self.rows: list[Rows] = []
        self.parts: list[FragmentPart] = []


class Gathering:
    """Keeps rows and fragments until they are sent."""

    def __init__(
        self,
        host: LocalHost,
        ready: list[int],
        socket: HostSocket,
        epoch: int,
        codec: ObservationCodec,
    ) -> None:
        self._host, self._ready, self._socket, self._epoch = host, ready, socket, epoch
        self._codec = codec
        self._wanted: dict[int, _Wanted] = {}
        self._rows: list[Rows] = []
        self._parts: list[FragmentPart] = []
        self._window = FragmentWindow()

    def expect(self, request: AnyRequest | Request) -> None:
        """Note a request from the head."""
        if isinstance(request, Collect) and request.asks_again:
            self._window.asked(request.slots)
        else:
            # A stream is over or interrupted: what was sent is not asked for again.
            self._window.clear()
        if isinstance(request, Act) or (
            isinstance(request, Step | Reset | Collect) and request.together
        ):
            self._wanted[request.request] = _Wanted(request)

    def forget(self, epoch: int) -> None:
        """Drop everything, and go on in this epoch."""
        self._epoch = epoch
        for part in [*self._parts, *(p for one in self._wanted.values() for p in one.parts)]:
            part.release()
        self._wanted.clear()
        self._rows.clear()
        self._parts.clear()
        self._window.clear()

    def add_rows(self, rows: Rows) -> None:
        """Take the rows of some slots that were stepped or reset."""
        wanted = self._wanted.get(rows.request.request)
        if wanted is None:
            self._rows.append(rows)
            return
        wanted.rows.append(rows)
        self._count_off(wanted, rows.slots)

    def add_fragment(self, part: FragmentPart) -> None:
        """Take a fragment of some slots."""
        wanted = self._wanted.get(part.request.request)
        if wanted is None:
            self._parts.append(part)
            return
        wanted.parts.append(part)
        self._count_off(wanted, part.slots)

    def count_off(self, request: AnyRequest, slots: Sequence[int]) -> None:
        """Note that some of what is wanted will not come."""
        wanted = self._wanted.get(request.request)
        if wanted is not None:
            self._count_off(wanted, slots)

    def let_go(self, slots: Sequence[int]) -> None:
        """Release earlier results of these slots, whose envs are lost, from waiting for others."""
        lost = set(slots)
        for wanted in self._wanted.values():
            self._rows += [rows for rows in wanted.rows if lost.intersection(rows.slots)]
            wanted.rows = [rows for rows in wanted.rows if not lost.intersection(rows.slots)]
            self._parts += [part for part in wanted.parts if lost.intersection(part.slots)]
            wanted.parts = [part for part in wanted.parts if not lost.intersection(part.slots)]

    def _count_off_silent(self) -> None:
        """Count off slots answered by rows alone, for which the request is not known."""
        for wanted in list(self._wanted.values()):
            if isinstance(wanted.request, Step):
                self._count_off(wanted, self._ready)

    def _count_off(self, wanted: _Wanted, slots: Sequence[int]) -> None:
        wanted.missing.difference_update(slots)
        if not wanted.missing:
            del self._wanted[wanted.request.request]
            self._rows += wanted.rows
            self._parts += wanted.parts

    def send(self) -> None:
        """Send what is there, for each slot in the order of its requests.

        If the host is lost in between, the head must not have later results without earlier ones.
        """
        if self._ready and self._wanted:
            self._count_off_silent()
        if self._parts and self._window.is_open:
            held_up = [part for part in self._parts if self._is_held_up(part)]
            parts = (
                [part for part in self._parts if part not in held_up] if held_up else self._parts
            )
            self._parts = held_up
            if self._rows:
                before, self._rows = _before_fragments(self._rows, parts)
                self._send_gathered(before, [])
            for group in group_for_messages(parts):
                self._send_fragments(group)
        rows, self._rows = self._rows, []
        self._send_gathered(rows, self._ready)

    def _is_held_up(self, part: FragmentPart) -> bool:
        """Whether an earlier fragment of its slots still waits here for other slots."""
        return part.request.ahead and any(
            number < part.request.request and not set(part.slots).isdisjoint(earlier.slots)
            for number, wanted in self._wanted.items()
            for earlier in wanted.parts
        )

    def _send_gathered(self, rows: list[Rows], ready: list[int]) -> None:
        while ready or rows:
            now, rows = _once_each(rows, set(ready))
            slots = sorted([*ready, *(slot for one in now for slot in one.slots)])
            ready.clear()
            self._send_rows(slots, tuple(_extra(one) for one in now if _says_more(one)))

    def send_all(self) -> None:
        """Send the rows of all slots, when there is nothing to add."""
        rows = self._host.rows
        self._socket.send(RowsMade(self._epoch, None), [rows.memory])

    def _send_rows(self, slots: Sequence[int], extras: tuple[Extra, ...]) -> None:
        rows = self._host.rows
        if len(slots) == len(self._host.slots):
            self._socket.send(RowsMade(self._epoch, None, extras), [rows.memory])
        else:
            self._socket.send(RowsMade(self._epoch, tuple(slots), extras), [rows.copy_of(slots)])

    def _send_fragments(self, parts: list[FragmentPart]) -> None:
        message, frames = fragment_made(self._epoch, parts, self._codec)
        if parts[0].request.asks_again:
            self._window.sent(message.slots)
        self._socket.send(message, frames)


def fragment_made(
    epoch: int, parts: Sequence[FragmentPart], codec: ObservationCodec
) -> tuple[FragmentMade, list[Buffer]]:
    """The message for parts that can be joined, and its frames."""
    part = join_parts(parts)
    written = [codec.write(name, array) for name, array in part.arrays.items()]
    message = FragmentMade(
        epoch,
        part.request.request,
        part.slots,
        part.version,
        tuple(part.arrays),
        tuple((array.dtype.str, array.shape) for array in part.arrays.values()),
        _others_than(part.request, parts),
        tuple(coding for coding, _ in written if coding is not None),
    )
    return message, [frame for _, frame in written]


def _before_fragments(rows: list[Rows], parts: list[FragmentPart]) -> tuple[list[Rows], list[Rows]]:
    """The rows of resets that precede these fragments; and the others."""
    asked = {slot: part.request.request for part in parts for slot in part.slots}
    before: list[Rows] = []
    others: list[Rows] = []
    for one in rows:
        is_before = any(one.request.request < asked.get(slot, 0) for slot in one.slots)
        (before if is_before else others).append(one)
    return before, others


def _once_each(rows: list[Rows], taken: set[int]) -> tuple[list[Rows], list[Rows]]:
    """Those that can travel together with rows of slots that are ``taken``; and the others.

    A slot may have been reset twice meanwhile, if the head asked twice.
    """
    now: list[Rows] = []
    later: list[Rows] = []
    for one in rows:
        (now if taken.isdisjoint(one.slots) else later).append(one)
        taken.update(one.slots)
    return now, later


def _says_more(rows: Rows) -> bool:
    return bool(rows.objects or rows.infos or rows.acted)


def _extra(rows: Rows) -> Extra:
    return Extra(tuple(rows.slots), rows.objects, rows.infos, rows.acted)


def _others_than(
    first: Collect, parts: Sequence[FragmentPart]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The other requests that these parts answer, each with its slots."""
    slots_of: dict[int, tuple[int, ...]] = {}
    for part in parts:
        number = part.request.request
        slots_of[number] = (*slots_of.get(number, ()), *part.slots)
    del slots_of[first.request]
    return tuple(slots_of.items())
