"""Which workers are lost: those that end, have to leave, or do not answer in time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from clusterenv.host.plan import WorkerLimits
from clusterenv.host.worker import Worker
from clusterenv.protocol.requests import AnyRequest, Collect, Evaluate

# The worker dumps its stack at step_timeout_s; give that time to reach its log.
_HUNG_GRACE_S = 2.0


def has_to_go(worker: Worker) -> bool:
    """Whether a worker that must leave can do so now: fragments can be collected again."""
    return bool(worker.leaving) and all(
        isinstance(asked.request, Collect) for asked in worker.asked.values()
    )


def overdue(
    workers: list[Worker], limits: WorkerLimits, now: float
) -> Iterator[tuple[Worker, str]]:
    """The workers that have not answered or become ready in time, with the limit they broke."""
    for worker in workers:
        if not worker.is_ready:
            if _waited_s(worker, now) > limits.restart_timeout_s:
                yield worker, f"not ready within restart_timeout_s={limits.restart_timeout_s:g}"
        elif any(_is_late(a.request, now - a.sent_at, limits) for a in worker.asked.values()):
            yield worker, f"no answer within step_timeout_s={limits.step_timeout_s:g}"


def _waited_s(worker: Worker, now: float) -> float:
    """How long somebody has been waiting for this worker to become ready.

    Before the first request nobody was listening, and it may have been ready for long.
    """
    asked_at = min((asked.sent_at for asked in worker.asked.values()), default=now)
    return now - max(asked_at, worker.started_at)


def _is_late(request: AnyRequest, waited_s: float, limits: WorkerLimits) -> bool:
    return waited_s > allowed_s(request, limits.step_timeout_s) + _HUNG_GRACE_S


def allowed_s(request: AnyRequest, step_timeout_s: float) -> float:
    """How long an answer may take. In longer requests the worker itself watches each step."""
    match request:
        case Collect(num_steps=num_steps):
            return step_timeout_s * num_steps
        case Evaluate():
            return math.inf
    return step_timeout_s
