"""Reports workers that make no progress, with their stacks, long before they count as lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterenv.host.events import Stuck
from clusterenv.host.plan import WorkerLimits
from clusterenv.host.worker import Worker
from clusterenv.memory.pulse import STACKS_FOLLOW
from clusterenv.protocol.requests import Act, Collect, Evaluate, Reset, Step

# A worker's signs of life come twice a second, and when they stop, its stacks need a moment.
_GRACE_S = 1.5
_HUNG_GRACE_S = 2.0
_MOST_LINES = 20
_TIMEOUT = "Timeout ("
"""The beginning of what faulthandler writes when code holds the GIL."""
_OURS = "/clusterenv/worker/"
_STEPS_ENVS = f"{_OURS}stepper.py"
_IMPORT = "<frozen importlib._bootstrap>"
_DOING = {
    Step: "a step",
    Act: "a step",
    Reset: "a reset",
    Collect: "a fragment",
    Evaluate: "an evaluation",
}


def find_stuck(workers: Sequence[Worker], limits: WorkerLimits, now: float) -> Iterator[Stuck]:
    """A report about workers that make no progress; if there are several, one with a stack."""
    found = [(worker, seconds) for worker in workers if (seconds := _stuck_s(worker, limits, now))]
    if found:
        # Threads of one process take turns: the others wait for the one in user code.
        worker, seconds = max(found, key=lambda one: len(_stack_of(one[0])))
        others = f" (nor have {len(found) - 1} more workers)" if len(found) > 1 else ""
        yield Stuck(worker.name, _in_words(worker, seconds, others, limits))


def _stuck_s(worker: Worker, limits: WorkerLimits, now: float) -> float:
    """For how long it has made no progress, if that was not reported yet; else 0."""
    pulse, alive_at = worker.pulse, worker.pulse.alive_at
    if pulse.num_stacks != worker.num_stacks:
        worker.num_stacks = pulse.num_stacks
        stuck_s = now - pulse.busy_since if pulse.busy_since else 0.0
        # If nobody looked for a while, it may be doing something else by now.
        return stuck_s if stuck_s > limits.slow_warning_s else 0.0
    if not worker.is_busy:
        worker.is_told_slow = False
    if worker.is_told_slow or not worker.is_busy:
        return 0.0
    since = alive_at or _known_since(worker, now)
    worker.is_told_slow = now - since > limits.slow_warning_s + _GRACE_S
    return now - since if worker.is_told_slow else 0.0


def _known_since(worker: Worker, now: float) -> float:
    """Since when it must be busy, if it gives no signs of life, as threads do not."""
    if not worker.is_ready:
        return worker.started_at
    # These may take any time; within them the worker itself watches each step.
    asked = [a for a in worker.asked.values() if not isinstance(a.request, Collect | Evaluate)]
    return min((one.sent_at for one in asked), default=now)


def find_frozen(
    workers: Iterable[Worker], limits: WorkerLimits, now: float
) -> Iterator[tuple[Worker, str]]:
    """Workers whose env has held the GIL for too long: they cannot end themselves."""
    for worker in workers:
        alive_at, (name, allowed_s) = worker.pulse.alive_at, _limit_of(worker, limits)
        if alive_at and worker.is_busy and now - alive_at > allowed_s + _HUNG_GRACE_S:
            yield worker, f"no sign of life within {name}={allowed_s:g}"


def _limit_of(worker: Worker, limits: WorkerLimits) -> tuple[str, float]:
    """The limit on what it is doing now."""
    if worker.is_ready:
        return "step_timeout_s", limits.step_timeout_s
    return "startup_timeout_s", limits.startup_timeout_s


def _in_words(worker: Worker, seconds: float, others: str, limits: WorkerLimits) -> str:
    log, (limit, allowed_s) = worker.running.log_tail(), _limit_of(worker, limits)
    kinds = [type(asked.request) for asked in worker.asked.values()]
    doing = _DOING.get(kinds[0], "a call") if kinds else "what it does"
    doing = doing if worker.is_ready else "building its envs"
    slot = worker.current_slot if may_be_in_env(log) else None
    where = "" if slot is None else f", in the env of slot {slot}"
    stack = stack_in(log)
    shown = f"\nIts stack, the last call first:\n{stack}" if stack else ""
    return (
        f"{worker.whereabouts()} has made no progress for {seconds:.0f} s in {doing}{where}"
        f"{others}; it counts as lost after {limit}={allowed_s:g}{shown}"
    )


def _stack_of(worker: Worker) -> str:
    return stack_in(worker.running.log_tail())


def stack_in(log: str) -> str:
    """The stacks that were written to a log last, the main thread's first."""
    lines = "\n".join(_threads_in(log)).splitlines()
    return "\n".join([line for line in lines if not _is_ours(line)][:_MOST_LINES])


def may_be_in_env(log: str) -> bool:
    """Whether an env may be running, by the last stacks in the log; a worker notes only which env
    was running last."""
    main = "".join(_threads_in(log)[:1])
    ours = [line for line in main.splitlines() if _OURS in line]
    # A deep stack is cut, and then does not show who called.
    return _STEPS_ENVS in ours[0] if ours else _IMPORT not in main


def _threads_in(log: str) -> list[str]:
    """The stack of each thread, as they were written last, the main thread's first."""
    start = max(log.rfind(STACKS_FOLLOW), log.rfind(_TIMEOUT))
    if start < 0:
        return []
    _, _, text = log[start:].partition("\n")
    blocks = [block.strip("\n") for block in text.split("\n\n")]
    # The main thread is written last, and the thread that watches it is of no interest.
    return [block for block in reversed(blocks) if block and "lifeline.py" not in block]


def _is_ours(line: str) -> bool:
    """Whether a line of a stack is about the worker itself and not about the user's code."""
    return _OURS in line or '"<frozen runpy>"' in line
