"""The thread that notices which workers are lost: by their engine, or by their connection."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from clusterenv.head.inbox import Inbox
from clusterenv.launchers.base import THREAD_NAME, Launcher, Status

_log = logging.getLogger("clusterenv")
# What a worker said just before it ended may still be on its way.
_DRAIN_S = 0.05
_TICK_S = 0.1
# The engine often knows why a connection broke, but not at once.
_ENGINE_MAY_TELL_S = 1.0
_UNKNOWN = Status(ended=False)


@dataclass(frozen=True)
class Ended:
    """A worker is lost, and why."""

    reason: str


class Watch(threading.Thread):
    """Puts an :class:`Ended` into the inbox for every worker that is lost."""

    def __init__(self, launcher: Launcher, inbox: Inbox) -> None:
        super().__init__(name=f"{THREAD_NAME} watch", daemon=True)
        self._launcher, self._inbox = launcher, inbox
        self._closing = threading.Event()
        self._reported: set[str] = set()
        # Worker → when it counts as lost if nothing better is known, and the reason.
        self._doubts: dict[str, tuple[float, str]] = {}
        self.status: dict[str, Status] = {}
        """What the engine said last."""

    def connection_broke(self, worker: str) -> None:
        """Called by the I/O thread."""
        reason = "its connection broke: the process ended, or its host cannot be reached"
        self._doubts[worker] = time.monotonic() + _ENGINE_MAY_TELL_S, reason

    def expect_within(self, worker: str, seconds: float) -> None:
        """This worker was enrolled and must be back soon."""
        reason = f"it was enrolled but did not come back within {seconds:g} s"
        self._doubts[worker] = time.monotonic() + seconds, reason

    def arrived(self, worker: str) -> None:
        """This worker has said Hello."""
        self._doubts.pop(worker, None)

    def run(self) -> None:
        """Look every now and then, until :meth:`close`."""
        next_look = 0.0
        while not self._closing.wait(min(_TICK_S, self._launcher.watch_every_s)):
            now = time.monotonic()
            due = [worker for worker, (when, _) in list(self._doubts.items()) if when <= now]
            if due or now >= next_look:
                next_look = now + self._launcher.watch_every_s
                self._look()
            for worker in due:
                _, reason = self._doubts.pop(worker, (0.0, ""))
                engine = self.status.get(worker, _UNKNOWN).reason
                self._report(worker, f"{reason} ({engine})" if engine else reason)

    def _look(self) -> None:
        try:
            self.status = self._launcher.status()
        except Exception:  # without this thread, nobody would notice a lost worker any more
            _log.warning("the launcher could not say how the workers are", exc_info=True)
            return
        for worker, status in self.status.items():
            if status.ended:
                self._report(worker, status.reason)

    def _report(self, worker: str, reason: str) -> None:
        if worker in self._reported or not reason:
            return
        self._reported.add(worker)
        self._closing.wait(_DRAIN_S)
        self._inbox.put(worker, Ended(reason))

    @property
    def is_closed(self) -> bool:
        """Whether the run is over."""
        return self._closing.is_set()

    def close(self) -> None:
        """Report nothing any more; :meth:`join` waits for the thread."""
        self._closing.set()
