"""Requests that need a policy: until the weights are there, and their worker is free.

What a worker is asked after such a request waits behind it, so that nothing overtakes a fragment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterenv.arrays import Buffer
from clusterenv.host.events import PullWanted
from clusterenv.host.weights import HostWeights
from clusterenv.host.worker import Worker
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Act, AnyRequest, Collect, PolicyRequest, is_ahead


@dataclass(frozen=True)
class Waiting:
    """What one worker is to do."""

    number: int
    request: AnyRequest
    """As the head asked for it, and …"""
    message: AnyRequest
    """… for this worker."""
    slots: tuple[int, ...]


class PolicyQueue:
    """Keeps the requests of each worker in order.

    Args:
        weights: Decides whether to pull before a request is begun.
        ahead: Whether a worker gets its next fragment before it is done with the last.
    """

    def __init__(self, weights: HostWeights, ahead: bool) -> None:
        self._weights, self._ahead = weights, ahead
        self._queues: dict[int, deque[Waiting]] = {}
        self._arrived: tuple[TakePolicy, int, Buffer | bytearray, str, int] | None = None
        """Weights that have come, and wait until nobody acts with another policy."""

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits here."""
        return any(self._queues.values())

    def is_waiting_for(self, worker: Worker) -> bool:
        """Whether anything waits here for this worker."""
        return bool(self._queues.get(worker.index))

    def add(self, worker: Worker, waiting: Waiting) -> None:
        """This worker is to do this, after what it was given before."""
        self._queues.setdefault(worker.index, deque()).append(waiting)

    def begin(self, staff: Sequence[Worker]) -> Iterator[tuple[Worker, Waiting] | PullWanted]:
        """What can be begun now; the weights that are wanted first, if any are."""
        self._take_arrived(staff)
        if self._weights.waits_for_policy and any(map(_is_acting, staff)):
            # What it was given to do is for the policy before, whose weights must stay till then.
            return
        while due := self._due(staff):
            # Nobody's next request may pull what another's earlier one must not act with.
            first = min(queue[0].request.request for _, queue in due)
            for worker, queue in due:
                request = queue[0].request
                if request.request > first:
                    continue
                if isinstance(request, PolicyRequest):
                    if self._weights.pulls_for:
                        return
                    if (wanted := self._weights.wanted_for(request)) is not None:
                        yield wanted
                        return
                yield worker, queue.popleft()

    def take_weights(
        self,
        policy: TakePolicy,
        version: int,
        vector: Buffer | bytearray,
        cause: str,
        num_bytes: int,
    ) -> None:
        """The weights that were wanted have come; workers get them with what is begun next."""
        self._arrived = policy, version, vector, cause, num_bytes

    def _take_arrived(self, staff: Sequence[Worker]) -> None:
        if self._arrived is None:
            return
        # The pull may have been for weights of the policy before, and that was replaced meanwhile.
        if self._weights.are_of_another(self._arrived[0]) and any(map(_is_acting, staff)):
            return
        arrived, self._arrived = self._arrived, None
        self._weights.take(*arrived)

    def give_up_pull(self) -> None:
        """Whoever asked for weights may ask again."""
        self._weights.pulls_for, self._arrived = "", None

    def _due(self, staff: Sequence[Worker]) -> list[tuple[Worker, deque[Waiting]]]:
        """Who may begin with what waits first for it."""
        return [
            (worker, queue)
            for worker in staff
            if (queue := self._queues.get(worker.index))
            and self._may_have(worker, queue[0].request)
        ]

    def _may_have(self, worker: Worker, request: AnyRequest) -> bool:
        """Whether it is due: what was asked for ahead is so at once, as its version is fixed."""
        return (
            self._ahead
            or is_ahead(request)
            or not any(isinstance(asked.request, Collect) for asked in worker.asked.values())
        )

    def forget(self, worker: Worker) -> list[Waiting]:
        """Nobody will do what this worker was to do."""
        return list(self._queues.pop(worker.index, ()))


def _is_acting(worker: Worker) -> bool:
    return any(isinstance(asked.request, Collect | Act) for asked in worker.asked.values())
