"""What a remote host was asked and has not answered."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from clusterenv.errors import ProtocolError
from clusterenv.host.events import Voided
from clusterenv.host.losses import allowed_s
from clusterenv.protocol.requests import Act, AnyRequest, Collect, Reset, Step


class Pending:
    """Requests under way, each with the slots that are still to be answered for."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[AnyRequest, set[int]]] = {}
        self._asked_at: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether everything has been answered."""
        return not self._open

    def add(self, request: AnyRequest) -> None:
        """The host was asked for this."""
        self._open[request.request] = request, set(request.slots)
        self._asked_at[request.request] = time.monotonic()

    def rows(self, slots: Sequence[int]) -> list[tuple[AnyRequest, Sequence[int]]]:
        """Which requests rows of these slots would answer, slot by slot; see :meth:`done`."""
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
        """These requests have been answered for these slots."""
        for request, slots in answered:
            _, left = self._open[request.request]
            left.difference_update(slots)
            if not left:
                del self._open[request.request], self._asked_at[request.request]

    def answered(self, number: int, slots: Sequence[int], *kinds: type) -> AnyRequest:
        """The host has answered this request, which must be one of ``kinds``, for these slots."""
        request = self._find(number, slots)
        if kinds and not isinstance(request, kinds):
            raise ProtocolError(f"another kind of answer than {type(request).__name__} needs")
        self.done([(request, slots)])
        return request

    def collected(self, answers: Iterable[tuple[int, Sequence[int]]]) -> None:
        """One fragment has answered these requests, for these slots of each."""
        self.done([(self._find(number, slots), slots) for number, slots in answers])

    def collects_of(self, answers: Iterable[tuple[int, Sequence[int]]]) -> list[Collect]:
        """The requests to collect which a fragment of these slots would answer."""
        collects = []
        for number, slots in answers:
            collects.append(self.collect_of(number))
            self._find(number, slots)
        return collects

    def voided(self, parts: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Voided, ...]:
        """The host will not answer these requests for these slots."""
        named = [(number, slot) for number, slots in parts for slot in slots]
        if len(set(named)) != len(named):
            raise ProtocolError("it says twice that it will not answer")
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
        """The slots that the host was asked to reset, and has not answered for."""
        resets = [left for request, left in self._open.values() if isinstance(request, Reset)]
        return set().union(*resets)

    def reopen(self, request: AnyRequest, slots: Iterable[int]) -> None:
        """What the host answered here was no answer."""
        _, left = self._open.setdefault(request.request, (request, set()))
        left.update(slots)
        self._asked_at.setdefault(request.request, time.monotonic())

    def collect_of(self, number: int) -> Collect:
        """The request to collect with this number."""
        request = self._open.get(number, (None, None))[0]
        if not isinstance(request, Collect):
            raise ProtocolError(f"a fragment for request {number}, which is none to collect")
        return request

    @property
    def oldest_at(self) -> float:
        """When the host was asked for the oldest of them; never, if there is none."""
        return min(self._asked_at.values(), default=math.inf)

    @property
    def all(self) -> list[Voided]:
        """Each request, with the slots that are still to be answered for."""
        return [Voided(request, tuple(left)) for request, left in self._open.values()]

    def void(self) -> tuple[Voided, ...]:
        """Nothing will be answered any more: what was asked."""
        voided = tuple(
            Voided(request, tuple(sorted(left))) for request, left in self._open.values()
        )
        self._open.clear()
        self._asked_at.clear()
        return voided

    def begin_now(self) -> None:
        """The host was not ready before: time counts from now on."""
        self._asked_at = dict.fromkeys(self._open, time.monotonic())

    def is_overdue(
        self, step_timeout_s: float, grace_s: float, staffed_at: float = 0.0, more_s: float = 0.0
    ) -> bool:
        """Whether the host itself must hang: it should have told of a worker that does.

        What was asked before ``staffed_at`` may have waited for a replacement, for ``more_s``.
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
