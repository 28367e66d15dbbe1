"""Times a run: the user's thread here, and the workers, as their hosts report."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from clusterenv.head.fleet import Fleet, Presence
from clusterenv.head.session import Session
from clusterenv.launchers.base import cores
from clusterenv.profile import FIRST_SLOT, VARIABLE, Profile, report
from clusterenv.sharing import in_words
from clusterenv.stopwatch import INFERENCE

_ASK_TIMEOUT_S = 10.0
# In these calls the user's thread does not wait for all slots at once.
_NOT_IN_LOCKSTEP = frozenset({"recv", "stream"})
_NOT_READY = frozenset({"ordered", "joining", "lost"})


def is_profile_wanted() -> bool:
    """Whether the environment variable asks for a profile."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


class _Losses:
    """The workers and hosts that were replaced since it was made."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_host: dict[str, int] = {}
        self._by_place: dict[str, int] = {}
        self._before = (0, 0)
        self._before = self.count()

    def count(self) -> tuple[int, int]:
        """How many workers, and how many hosts."""
        self._look()
        workers, hosts = self._totals()
        return workers - self._before[0], hosts - self._before[1]

    def is_replacement_awaited(self) -> bool:
        """Whether another one was replaced since the last look, or is still being replaced."""
        known = self._totals()
        is_missing = any(map(_is_missing, self._look()))
        return is_missing or self._totals() != known

    def _totals(self) -> tuple[int, int]:
        return sum(self._by_host.values()), sum(self._by_place.values())

    def _look(self) -> Sequence[Presence]:
        hosts = [host for host in self._fleet.survey() if host.slots]
        for host in hosts:
            replaced = sum(worker.incarnation for worker in host.workers)
            # A host that has just come does not know its workers yet.
            self._by_host[host.name] = max(replaced, self._by_host.get(host.name, 0))
            self._by_place[host.name.rpartition(".")[0]] = host.restarts
        return hosts


def _is_missing(host: Presence) -> bool:
    """Whether this host, or a worker of it, is a replacement that is not ready yet."""
    if host.restarts and host.state in _NOT_READY:
        return True
    return any(worker.incarnation and worker.state in _NOT_READY for worker in host.workers)


class Profiler:
    """Times what happens inside ``with``; then :attr:`result` says where the time went.

    ``print`` it for a table and advice. Only workers that were there all the time count.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._fleet = session, session.fleet
        self._stopwatch = session.fleet.stopwatch
        self._began, self._rows = 0.0, 0
        self._losses: _Losses | None = None
        self._kept: object = None
        self.result: Profile | None = None
        """The seconds; None until it has ended."""

    def __enter__(self) -> Profiler:
        self._session.profile(on=True, timeout_s=_ASK_TIMEOUT_S)
        self._losses = losses = _Losses(self._fleet)
        self._rows, self._began = self._count_rows(), time.perf_counter()
        self._stopwatch.start(losses.is_replacement_awaited)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        wall_s, seconds = time.perf_counter() - self._began, self._stopwatch.stop()
        if kind is not None:
            # The user wants to see the original error.
            with suppress(Exception):
                self._session.profile(on=False, timeout_s=0.0)
            return
        steps = self._count_rows() - self._rows
        self.result = self._profile(wall_s, steps, seconds, self._ask_workers())

    def _profile(
        self, wall_s: float, steps: int, seconds: dict[str, float], workers: list[dict[str, float]]
    ) -> Profile:
        calls, fleet = frozenset(self._stopwatch.calls), self._fleet
        here = {socket.gethostname()}
        are_here = {host.machine for host in fleet.survey() if host.slots} == here
        lost_workers, lost_hosts = (0, 0) if self._losses is None else self._losses.count()
        return Profile(
            wall_s=wall_s,
            steps=steps,
            head=seconds,
            workers=workers,
            behind_s=0.0 if calls & _NOT_IN_LOCKSTEP or not workers else _behind_s(workers),
            calls=calls,
            num_envs=self._session.num_envs,
            num_workers=len(fleet.workers),
            cores=cores() if are_here else None,
            names=self._names_of(workers),
            lost_workers=lost_workers,
            lost_hosts=lost_hosts,
        )

    def _names_of(self, workers: Sequence[dict[str, float]]) -> list[str]:
        """The name and the slots of each, of those that are still there with these slots."""
        several = len(self._fleet.hosts) > 1
        names = {
            float(one.slots.start): f"{one.name}{f' of {one.host}' if several else ''}"
            f" ({in_words(one.slots)})"
            for one in self._fleet.workers
            if one.slots
        }
        return [names.get(worker.get(FIRST_SLOT, -1.0), "a worker") for worker in workers]

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Count what happens inside ``with`` as a forward pass at the head."""
        before = self._stopwatch.begin(INFERENCE)
        try:
            yield
        finally:
            self._stopwatch.begin(before)

    def begin_and_tell(self, envs: object) -> Profiler:
        """Begin, and print the result to standard error when the run or the process ends."""
        self.__enter__()
        # Keeps envs that were never closed alive, so that they are reported too.
        self._kept = envs
        atexit.register(self.tell)
        return self

    def tell(self) -> None:
        """End, and print the result, once."""
        atexit.unregister(self.tell)
        try:
            self.__exit__(None, None, None)
            text = str(self)
        except Exception as error:  # must not make the end of the run fail
            text = f"no profile: {error!r}"
        print(f"clusterenv profile of run {self._session.run_id}: {text}", file=sys.stderr)
        self._kept = None

    def __str__(self) -> str:
        return "still running" if self.result is None else report(self.result)

    def _ask_workers(self) -> list[dict[str, float]]:
        answers = self._session.profile(on=False, timeout_s=_ASK_TIMEOUT_S)
        return [seconds for seconds in answers if seconds]

    def _count_rows(self) -> int:
        return sum(host.num_rows for host in self._fleet.survey())


def _behind_s(workers: Sequence[dict[str, float]]) -> float:
    """How long, on average, workers waited for slower ones.

    A host knows how long each worker waited for others of the same host. For another host they
    waited at least as long as it was busier in total.
    """
    idle_s = [worker["idle"] for worker in workers]
    # Who waits is idle: what is counted elsewhere must not be counted again.
    behind_s = sum(min(worker["behind"], worker["idle"]) for worker in workers) / len(workers)
    return max(behind_s, sum(idle_s) / len(idle_s) - min(idle_s))
