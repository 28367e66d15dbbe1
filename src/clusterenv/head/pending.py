"""What a remote host was asked and has not answered yet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.losses import allowed_s
from clusterenv.protocol.requests import Act, AnyRequest, Collect, Reset, Step


class Pending:
    """Requests under way, each with the slots that are still unanswered."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[AnyRequest, set[int]]] = {}
        self._asked_at: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether everything has been answered."""
        return not self._open

    def add(self, request: AnyRequest) -> None:
        """Note a request to the host."""
        self._open[request.request] = request, set(request.slots)
        self._asked_at[request.request] = time.monotonic()

    def rows(self, slots: Sequence[int]) -> list[tuple[AnyRequest, Sequence[int]]]:
        """The requests that rows of these slots would answer, slot by slot; see :meth:`done`."""
        answered: list[tuple[AnyRequest, Sequence[int]]] = []
        missing = set(slots)
        for request, left in self._open.values():
            if not missing:
                break
            if isinstance(request, Step | Reset | Act) and (found := left & missing):
                missing -= found
                whole = len(found) == len(slots)
                answered.append((request, slots if whole else sorted(found)))
        if missing:
            raise ProtocolError(f"rows of slots {_some(missing)}, which nobody asked for")
        return answered

    def done(self, answered: Iterable[tuple[AnyRequest, Iterable[int]]]) -> None:
        """Note that these requests have been answered for these slots."""
        for request, slots in answered:
            _, left = self._open[request.request]
            left.difference_update(slots)
            if not left:
                del self._open[request.request], self._asked_at[request.request]

    def answered(self, number: int, slots: Sequence[int], *kinds: type) -> AnyRequest:
        """Note an answer to this request, which must be one of ``kinds``, for these slots."""
        request = self._find(number, slots)
        if kinds and not isinstance(request, kinds):
            raise ProtocolError(f"wrong kind of answer to {type(request).__name__}")
        self.done([(request, slots)])
        return request

    def collected(self, answers: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note one fragment that answers these requests, for these slots of each."""
        self.done([(self._find(number, slots), slots) for number, slots in answers])

    def collects_of(self, answers: Iterable[tuple[int, Sequence[int]]]) -> list[Collect]:
        """The collect requests that a fragment of these slots would answer."""
        collects = []
        for number, slots in answers:
            collects.append(self.collect_of(number))
            self._find(number, slots)
        return collects

    def voided(self, parts: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Voided, ...]:
        """Note that the host will not answer these requests for these slots."""
        named = [(number, slot) for number, slots in parts for slot in slots]
        if len(set(named)) != len(named):
            raise ProtocolError("a request is voided twice for one slot")
        voided = tuple(Voided(self._find(number, slots), slots) for number, slots in parts)
        self.done((one.request, one.slots) for one in voided)
        return voided

    def _find(self, number: int, slots: Sequence[int]) -> AnyRequest:
        if number not in self._open:
            raise ProtocolError(f"an answer to request {number}, which is not open")
        request, left = self._open[number]
        if not slots or not left.issuperset(slots):
            raise ProtocolError(f"an answer to request {number} for slots that nobody asked for")
        return request

    def to_be_reset(self) -> set[int]:
        """The slots that the host was asked to reset and has not answered for."""
        resets = [left for request, left in self._open.values() if isinstance(request, Reset)]
        return set().union(*resets)

    def reopen(self, request: AnyRequest, slots: Iterable[int]) -> None:
        """Take back an answer that turned out to be unusable."""
        _, left = self._open.setdefault(request.request, (request, set()))
        left.update(slots)
        self._asked_at.setdefault(request.request, time.monotonic())

    def collect_of(self, number: int) -> Collect:
        """The collect request with this number."""
        request = self._open.get(number, (None,))[0]
        if not isinstance(request, Collect):
            raise ProtocolError(f"a fragment for request {number}, which is not a pending Collect")
        return request

    def is_collect(self, number: int) -> bool:
        """Whether this is an open request for fragments."""
        return isinstance(self._open.get(number, (None,))[0], Collect)

    @property
    def oldest_at(self) -> float:
        """When the oldest of them was asked; infinite if there is none."""
        return min(self._asked_at.values(), default=math.inf)

    @property
    def all(self) -> list[Voided]:
        """Each request, with the slots that are still unanswered."""
        return [Voided(request, tuple(left)) for request, left in self._open.values()]

    def void(self) -> tuple[Voided, ...]:
        """Forget everything, since nothing will be answered any more; returns what it was."""
        voided = tuple(
            Voided(request, tuple(sorted(left))) for request, left in self._open.values()
        )
        self._open.clear()
        self._asked_at.clear()
        return voided

    def begin_now(self) -> None:
        """Count the time from now on: the host was not ready before."""
        self._asked_at = dict.fromkeys(self._open, time.monotonic())

    def is_overdue(
        self, step_timeout_s: float, grace_s: float, staffed_at: float = 0.0, more_s: float = 0.0
    ) -> bool:
        """Whether the host itself must hang, since it would have reported a worker that does.

        A request made before ``staffed_at`` may also have waited ``more_s`` for a replacement.
        """
        now = time.monotonic()
        for number, (request, _) in self._open.items():
            asked_at = self._asked_at[number]
            waited_s = more_s if asked_at < staffed_at else 0.0
            if now - asked_at > allowed_s(request, step_timeout_s) + grace_s + waited_s:
                return True
        return False


def _some(slots: Iterable[int]) -> str:
    """The first of these slots; a host may name very many."""
    first, *others = sorted(slots)
    return f"{first} and {len(others)} more" if others else f"{first}"
