"""How long workers wait for slower ones when all are asked together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from clusterenv.host.worker import Worker

_NANOSECONDS = 1e-9


class LateAnswers:
    """Notes, whenever workers are asked again, when each of them had answered."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock, self._asked_at = clock, clock()
        self._waited: Counter[int] = Counter()

    def note(self, workers: Sequence[Worker]) -> None:
        """Call before these workers are asked: adds how long each has waited for the last one."""
        answered_at = [worker.answered_at for worker in workers]
        last = max(answered_at)
        for worker, at in zip(workers, answered_at, strict=True):
            # A worker without an answer since then was not asked, or is still at work.
            if at > self._asked_at:
                self._waited[worker.index] += last - at
        self._asked_at = self._clock()

    def seconds_of(self, worker: Worker) -> float:
        """How long this worker has waited for others so far."""
        return self._waited[worker.index] * _NANOSECONDS
