"""Requests that need a policy wait here until the weights are there and their worker is free.

Later requests to the same worker wait behind them, so that nothing overtakes a fragment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterenv.host.events import PullWanted
from clusterenv.host.weights import HostWeights, PulledWeights
from clusterenv.host.worker import Worker
from clusterenv.protocol.requests import Act, AnyRequest, Collect, PolicyRequest, is_ahead


@dataclass(frozen=True)
class Waiting:
    """What one worker has to do."""

    number: int
    request: AnyRequest
    """The head's request, and …"""
    message: AnyRequest
    """… this worker's share of it."""
    slots: tuple[int, ...]


class PolicyQueue:
    """Keeps the requests of each worker in order.

    Args:
        weights: Decides whether to pull before a request is begun.
        ahead: Whether a worker gets its next fragment before it finishes the last one.
    """

    def __init__(self, weights: HostWeights, ahead: bool) -> None:
        self._weights, self._ahead = weights, ahead
        self._queues: dict[int, deque[Waiting]] = {}
        self._arrived: PulledWeights | None = None
        """Weights that have come, and wait until nobody acts with another policy."""

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits here."""
        return any(self._queues.values())

    def is_waiting_for(self, worker: Worker) -> bool:
        """Whether anything waits here for this worker."""
        return bool(self._queues.get(worker.index))

    def add(self, worker: Worker, waiting: Waiting) -> None:
        """Queue this for the worker, behind what it was given before."""
        self._queues.setdefault(worker.index, deque()).append(waiting)

    def begin(self, staff: Sequence[Worker]) -> Iterator[tuple[Worker, Waiting] | PullWanted]:
        """What can begin now; or the weights that are needed first, if any are."""
        self._take_arrived(staff)
        if self._weights.waits_for_policy and any(map(_is_acting, staff)):
            # They still act for the previous policy, whose weights must stay until they finish.
            return
        while due := self._due(staff):
            # A later request must not pull what another worker's earlier one must not act with.
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

    def take_weights(self, pulled: PulledWeights) -> None:
        """Take the weights that were wanted; workers get them with what begins next."""
        self._arrived = pulled

    def _take_arrived(self, staff: Sequence[Worker]) -> None:
        if self._arrived is None:
            return
        # The pull may have been for the previous policy, which was replaced meanwhile.
        if self._weights.are_of_another(self._arrived.policy) and any(map(_is_acting, staff)):
            return
        arrived, self._arrived = self._arrived, None
        self._weights.take(arrived)

    def give_up_pull(self) -> None:
        """Give up the pull under way, so that another can be made."""
        self._weights.pulls_for, self._arrived = "", None

    def _due(self, staff: Sequence[Worker]) -> list[tuple[Worker, deque[Waiting]]]:
        """The workers that may begin with the first request in their queue."""
        return [
            (worker, queue)
            for worker in staff
            if (queue := self._queues.get(worker.index))
            and self._may_have(worker, queue[0].request)
        ]

    def _may_have(self, worker: Worker, request: AnyRequest) -> bool:
        """Whether it is due; a request made ahead is due at once, since its version is fixed."""
        return (
            self._ahead
            or is_ahead(request)
            or not any(isinstance(asked.request, Collect) for asked in worker.asked.values())
        )

    def forget(self, worker: Worker) -> list[Waiting]:
        """Empty this worker's queue; returns what was in it."""
        return list(self._queues.pop(worker.index, ()))


def _is_acting(worker: Worker) -> bool:
    return any(isinstance(asked.request, Collect | Act) for asked in worker.asked.values())
