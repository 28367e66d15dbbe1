"""Requests that need a policy: until the weights are there, and their worker is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterenv.host.events import PullWanted
from clusterenv.host.weights import HostWeights
from clusterenv.host.worker import Worker
from clusterenv.protocol.requests import Act, AnyRequest, Collect, PolicyRequest


@dataclass(frozen=True)
class Waiting:
    """What one worker is to do."""

    number: int
    request: PolicyRequest
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

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits here."""
        return any(self._queues.values())

    def add(self, worker: Worker, waiting: Waiting) -> None:
        """This worker is to do this, after what it was given before."""
        self._queues.setdefault(worker.index, deque()).append(waiting)

    def begin(self, staff: Sequence[Worker]) -> Iterator[tuple[Worker, Waiting] | PullWanted]:
        """What can be begun now; the weights that are wanted first, if any are."""
        if self._weights.waits_for_policy and any(map(_is_acting, staff)):
            # What it was given to do is for the policy before, whose weights must stay till then.
            return
        for worker in staff:
            queue = self._queues.get(worker.index)
            while queue and self._is_free(worker):
                if self._weights.pulls_for:
                    return
                if (wanted := self._weights.wanted_for(queue[0].request)) is not None:
                    yield wanted
                    return
                yield worker, queue.popleft()

    def _is_free(self, worker: Worker) -> bool:
        return self._ahead or not any(
            isinstance(asked.request, Collect) for asked in worker.asked.values()
        )

    def forget(self, worker: Worker) -> list[Waiting]:
        """Nobody will do what this worker was to do."""
        return list(self._queues.pop(worker.index, ()))

    def clear(self) -> list[Waiting]:
        """Nobody wants any of it any more."""
        queues, self._queues = self._queues, {}
        return [waiting for queue in queues.values() for waiting in queue]


def _is_acting(worker: Worker) -> bool:
    return any(isinstance(asked.request, Collect | Act) for asked in worker.asked.values())
