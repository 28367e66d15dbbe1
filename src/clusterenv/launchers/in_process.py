"""Workers as threads of the head, so that breakpoints and profilers work. Not for speed."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.launchers.base import Order, Status


class InProcessLauncher:
    """The host is an object in the head's process, and its workers are threads.

    There is nothing to start: this only says so.
    """

    towards = "127.0.0.1"
    trusted = True
    enrols = False
    watch_every_s = 0.1
    num_hosts = 0
    workers_per_host: int | None = None

    def start(self, orders: Sequence[Order]) -> None:
        """Nothing to start, since ``num_hosts`` is 0."""

    def status(self) -> dict[str, Status]:
        """No host was started."""
        return {}

    def logs(self, host: str) -> str:
        """Threads print to the head's own output."""
        return ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """No host was started."""

    def enrolled(self, host: str, place: str) -> None:
        """No host comes with a ticket."""
