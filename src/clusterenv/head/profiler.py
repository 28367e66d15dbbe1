"""Times a run from the head: its own parts here, the workers' by asking them."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from clusterenv.head.head import Head
from clusterenv.launchers.base import cores
from clusterenv.profile import VARIABLE, Profile, report
from clusterenv.stopwatch import Stopwatch

_CALLS = ("reset", "step", "step_wait", "rollout", "recv", "send", "publish", "evaluate", "call")
_ASK_TIMEOUT_S = 10.0


def is_wanted() -> bool:
    """Whether the environment asks for a profile."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


class Profiler:
    """Times what happens between ``with`` and its end; then :attr:`result` says where it went.

    Of the workers, those count that were there all along.
    """

    def __init__(self, envs: Any, head: Head, workers_are_here: bool) -> None:
        self._envs, self._head = envs, head
        self._cores = cores() if workers_are_here else None
        self._calls: set[str] = set()
        self._arrived_at: dict[int, float] = {}
        self._behind_s = 0.0
        self.result: Profile | None = None

    def __enter__(self) -> Profiler:
        self._ask_workers(on=True)
        self._names = [member.worker for member in self._head.roster.members]
        self._rows = self._count_rows()
        self.watch = Stopwatch("learner")
        self._attach(self.watch)
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        wall_s, seconds = time.perf_counter() - self._began, self.watch.stop()
        if kind is not None:
            return
        steps = self._count_rows() - self._rows
        workers = self._readings()
        self.result = Profile(
            wall_s=wall_s,
            steps=steps,
            head=seconds,
            workers=workers,
            behind_s=self._behind_s / max(1, len(self._names)),
            calls=frozenset(self._calls),
            num_envs=self._head.num_envs,
            num_workers=len(self._names),
            cores=self._cores,
        )

    def begin_and_tell(self) -> None:
        """Begin; at the end of the run, or of the process, say on standard error what it was."""
        self.__enter__()
        atexit.register(self.tell)

    def tell(self) -> None:
        """End, and say what it was, once."""
        atexit.unregister(self.tell)
        try:
            self.__exit__(None, None, None)
            text = str(self)
        except Exception as error:  # the run's own end is not to fail for this
            text = f"no profile: {error!r}"
        print(f"clusterenv profile of run {self._head.run.id}: {text}", file=sys.stderr)

    def __str__(self) -> str:
        return "still running" if self.result is None else report(self.result)

    def _attach(self, watch: Stopwatch) -> None:
        envs, head = self._envs, self._head
        for method in _CALLS:
            watch.replace(envs, method, self._noting(method, watch, getattr(envs, method)))
        stream = envs.stream
        noted = self._noting("stream", watch, stream)
        watch.replace(envs, "stream", lambda *a, **k: watch.over("head", noted(*a, **k)))
        for method in ("wait", "wait_for_bell", "spin_until"):
            watch.attach(head.crew.inbox, method, "wait")
        # It leaves no moment to be timed.
        watch.replace(head, "step_at_once", lambda actions: False)
        watch.replace(head, "_take", self._noting_arrival(head._take))
        watch.replace(head, "wait_until_idle", self._in_lockstep(head.wait_until_idle))
        watch.replace(head.collector, "wait_for", self._in_lockstep(head.collector.wait_for))

    def _noting(
        self, method: str, watch: Stopwatch, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        timed = watch.around("head", function)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.add(method)
            return timed(*args, **kwargs)

        return call

    def _noting_arrival(self, take: Callable[..., None]) -> Callable[..., None]:
        def note(flight: Any, reply: Any, frames: Any) -> None:
            self._arrived_at[flight.member.index] = time.perf_counter()
            take(flight, reply, frames)

        return note

    def _in_lockstep(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """All that arrives during one such wait was asked for together."""

        def wait_for_all(*args: Any) -> Any:
            self._arrived_at.clear()
            try:
                return wait(*args)
            finally:
                last = max(self._arrived_at.values(), default=0.0)
                self._behind_s += sum(last - at for at in self._arrived_at.values())

        return wait_for_all

    def _ask_workers(self, *, on: bool) -> Sequence[Any]:
        self._head.profile(on)
        if not self._head.wait_until_idle(_ASK_TIMEOUT_S):
            self._head.abandon()
            return []
        return self._head.take_values()

    def _readings(self) -> list[dict[str, float]]:
        values = self._ask_workers(on=False)
        return [value for value in values if value and _are_seconds(value)]

    def _count_rows(self) -> int:
        return sum(member.rows for member in self._head.roster.members)


def _are_seconds(value: Any) -> bool:
    """Whether a worker said what it should: workers are not believed blindly."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(seconds, float) and 0 <= seconds < math.inf
        for name, seconds in value.items()
    )
