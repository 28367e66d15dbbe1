"""What a host's workers have done, gathered so that one message tells the head of all of it."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.arrays import bytes_of
from clusterenv.host.events import Rows
from clusterenv.host.host import Host
from clusterenv.protocol.fragments import FragmentPart, join_parts
from clusterenv.protocol.requests import Act, AnyRequest, Collect, Request, Reset, Step
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.messages import Extra, FragmentMade, RowsMade


class _Wanted:
    """A request whose answers are wanted all at once."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.missing = set(request.slots)
        self.rows: list[Rows] = []
        self.parts: list[FragmentPart] = []


class Gathering:
    """Keeps rows and fragments until they are to be sent."""

    def __init__(self, host: Host, ready: list[int], socket: HostSocket, epoch: int) -> None:
        self._host, self._ready, self._socket, self._epoch = host, ready, socket, epoch
        self._wanted: dict[int, _Wanted] = {}
        self._rows: list[Rows] = []
        self._parts: list[FragmentPart] = []

    def expect(self, request: AnyRequest | Request) -> None:
        """The head has asked for this."""
        if isinstance(request, Act) or (
            isinstance(request, Step | Reset | Collect) and request.together
        ):
            self._wanted[request.request] = _Wanted(request)

    def forget(self, epoch: int) -> None:
        """Nobody wants anything of it any more."""
        self._epoch = epoch
        for part in [*self._parts, *(p for one in self._wanted.values() for p in one.parts)]:
            part.release()
        self._wanted.clear()
        self._rows.clear()
        self._parts.clear()

    def add_rows(self, rows: Rows) -> None:
        """Some slots were stepped or reset."""
        wanted = self._wanted.get(rows.request.request)
        if wanted is None:
            self._rows.append(rows)
            return
        wanted.rows.append(rows)
        self._count_off(wanted, rows.slots)

    def add_fragment(self, part: FragmentPart) -> None:
        """A fragment of some slots has come."""
        wanted = self._wanted.get(part.request.request)
        if wanted is None:
            self._parts.append(part)
            return
        wanted.parts.append(part)
        self._count_off(wanted, part.slots)

    def count_off(self, request: AnyRequest, slots: Sequence[int]) -> None:
        """Some of what is wanted will not come."""
        wanted = self._wanted.get(request.request)
        if wanted is not None:
            self._count_off(wanted, slots)

    def _count_off_silent(self) -> None:
        """Slots that were answered for by rows alone: nobody says which request that was."""
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
        """Send what is there."""
        if self._ready and self._wanted:
            self._count_off_silent()
        while self._ready or self._rows:
            rows, self._rows = _once_each(self._rows, set(self._ready))
            slots = sorted([*self._ready, *(slot for one in rows for slot in one.slots)])
            self._ready.clear()
            self._send_rows(slots, tuple(_extra(one) for one in rows if _says_more(one)))
        if self._parts:
            parts, self._parts = self._parts, []
            for group in _alike(parts):
                self._send_fragment(group)

    def send_all(self) -> None:
        """All slots were stepped, and there is nothing else to say."""
        memory = self._host.rows.memory
        self._socket.send(RowsMade(self._epoch, None), [memory])

    def _send_rows(self, slots: Sequence[int], extras: tuple[Extra, ...]) -> None:
        rows = self._host.rows
        if len(slots) == len(self._host.slots):
            self._socket.send(RowsMade(self._epoch, None, extras), [rows.memory])
        else:
            self._socket.send(RowsMade(self._epoch, tuple(slots), extras), [rows.copy_of(slots)])

    def _send_fragment(self, parts: list[FragmentPart]) -> None:
        part = join_parts(parts)
        kinds = tuple((array.dtype.str, array.shape) for array in part.arrays.values())
        message = FragmentMade(
            self._epoch,
            part.request.request,
            part.slots,
            part.version,
            tuple(part.arrays),
            kinds,
        )
        self._socket.send(message, [bytes_of(array) for array in part.arrays.values()])


def _once_each(rows: list[Rows], taken: set[int]) -> tuple[list[Rows], list[Rows]]:
    """Those that can travel together, with rows of slots that are ``taken``; and the others.

    A slot may have been reset twice meanwhile, where the head asked for that twice.
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


def _alike(parts: list[FragmentPart]) -> list[list[FragmentPart]]:
    """Those that can be joined: what comes between may follow, from a replacement."""
    groups: list[list[FragmentPart]] = []
    for part in sorted(parts, key=lambda part: (part.request.request, part.slots)):
        if groups and _fits(groups[-1][-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _fits(part: FragmentPart, following: FragmentPart) -> bool:
    """Whether they are of neighbours, of one request and version, with arrays of the same kinds."""
    return (
        part.slots[-1] + 1 == following.slots[0]
        and part.request.request == following.request.request
        and part.version == following.version
        and _kinds_of(part) == _kinds_of(following)
    )


def _kinds_of(part: FragmentPart) -> list[tuple[str, str]]:
    return [(name, array.dtype.str) for name, array in part.arrays.items()]
