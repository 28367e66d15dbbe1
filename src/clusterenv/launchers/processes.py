"""Hosts that are child processes of the head, or whose client program (ssh, srun) is one."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from clusterenv.children import ChildProcess
from clusterenv.launchers.base import Order, Status


class ProcessLauncher(ABC):
    """One child process per host. Its invitation comes on standard input, which stays open:
    when it closes, the head is gone and the host ends.

    Args:
        log_dir: Where each host's output goes (``host-0.0.log`` …). By default it goes to unnamed
            files, and errors show the end of them.
    """

    enrols = False
    watch_every_s = 0.1

    def __init__(self, log_dir: str | Path | None = None) -> None:
        self.log_dir = Path(log_dir) if log_dir is not None else None
        self._children: dict[str, ChildProcess] = {}

    @abstractmethod
    def command(self, host: str) -> list[str]:
        """The command to run on this machine for this host."""

    def environment(self) -> dict[str, str]:
        """The environment variables of the command."""
        return dict(os.environ)

    def invitation(self, order: Order) -> bytes:
        """The first line of its standard input."""
        return order.invitation

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""
        for order in orders:
            self._children[order.host] = ChildProcess(
                self.command(order.host),
                self.invitation(order) + b"\n",
                self.environment(),
                self.log_dir and self.log_dir / f"{order.host}.log",
            )

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""
        # A copy: the watcher asks while the user's thread replaces hosts.
        children = list(self._children.items())
        for _, child in children:
            child.log.trim()
        return {host: self._status(child) for host, child in children}

    def _status(self, child: ChildProcess) -> Status:
        how = child.how_it_ended()
        return Status(ended=False) if how is None else Status(True, how)

    def logs(self, host: str) -> str:
        """The end of what the host printed."""
        child = self._children.get(host)
        return "" if child is None else child.log_tail()

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        children = [self._children[host] for host in hosts if host in self._children]
        deadline = time.monotonic() + grace_s
        for child in children:
            child.wait(deadline)
        for child in children:
            # The whole process group. Workers lead groups of their own: they end with their host.
            child.kill()
        for host in hosts:
            self._children.pop(host, None)

    def enrolled(self, host: str, place: str) -> None:  # noqa: B027 - there is nothing to override
        """No host comes with a ticket: each has an invitation of its own."""
