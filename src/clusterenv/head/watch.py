"""The thread that notices lost hosts, by their engine or by their connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterenv.launchers.base import THREAD_NAME, Launcher, Status

_log = logging.getLogger("clusterenv")
# A host's last message before it ended may still be on its way.
_DRAIN_S = 0.05
_TICK_S = 0.1
# The engine often knows why a connection broke, but not at once.
_ENGINE_MAY_TELL_S = 1.0
_UNKNOWN = Status(ended=False)


@dataclass(frozen=True)
class Ended:
    """A host is lost, for this reason."""

    reason: str
    refused: str = ""
    """Why the head refused it, if it did."""


class Watch(threading.Thread):
    """Reports every host that is lost."""

    def __init__(self, launcher: Launcher, tell: Callable[[str, Ended], None]) -> None:
        super().__init__(name=f"{THREAD_NAME} watch", daemon=True)
        self._launcher, self._tell = launcher, tell
        self._closing = threading.Event()
        self._reported: set[str] = set()
        # Host → when it counts as lost unless something better is known, and the reason.
        self._doubts: dict[str, tuple[float, str]] = {}
        self.status: dict[str, Status] = {}
        """The engine's latest report."""

    def connection_broke(self, host: str) -> None:
        """Note a broken connection; called by the I/O thread."""
        reason = "its connection broke: the process ended, or its machine cannot be reached"
        self._doubts[host] = time.monotonic() + _ENGINE_MAY_TELL_S, reason

    def expect_within(self, host: str, seconds: float) -> None:
        """Note that this host was enrolled and must be back soon."""
        reason = f"it was enrolled but did not come back within {seconds:g} s"
        self._doubts[host] = time.monotonic() + seconds, reason

    def arrived(self, host: str) -> None:
        """Note that this host has said Hello."""
        self._doubts.pop(host, None)

    def status_of(self, host: str) -> Status:
        """The engine's latest word on how a host is."""
        return self.status.get(host, _UNKNOWN)

    def run(self) -> None:
        """Look at regular intervals until :meth:`close`."""
        next_look = 0.0
        while not self._closing.wait(min(_TICK_S, self._launcher.watch_every_s)):
            now = time.monotonic()
            due = [host for host, (when, _) in list(self._doubts.items()) if when <= now]
            if due or now >= next_look:
                next_look = now + self._launcher.watch_every_s
                self._look()
            for host in due:
                _, reason = self._doubts.pop(host, (0.0, ""))
                engine = self.status_of(host).reason
                self._report(host, f"{reason} ({engine})" if engine else reason)

    def _look(self) -> None:
        try:
            self.status = self._launcher.status()
        except Exception:  # without this thread, nobody would notice a lost host any more
            _log.warning("the launcher could not say how the hosts are", exc_info=True)
            return
        for host, status in self.status.items():
            if status.ended:
                self._report(host, status.reason)

    def _report(self, host: str, reason: str) -> None:
        if host in self._reported or not reason:
            return
        self._reported.add(host)
        self._closing.wait(_DRAIN_S)
        self._tell(host, Ended(reason))

    @property
    def is_closed(self) -> bool:
        """Whether the run is over."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop reporting; :meth:`join` waits for the thread."""
        self._closing.set()
