"""What runs in the actors of `RayLauncher`, and what the head knows of each."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.local import LocalLauncher

_LOOK_EVERY_S = 0.1


class Keeper:
    """Keeps one worker on its node, as `LocalLauncher` does here.

    The worker is a process of its own, and ends with this one, since its standard input closes.
    """

    def __init__(self, environment: dict[str, str], log_dir: str | None) -> None:
        self._local = LocalLauncher(log_dir, environment)

    def where(self) -> str:
        """The name of the node."""
        return socket.gethostname()

    def run(self, worker: str, invitation: bytes) -> tuple[str, str]:
        """Start the worker and wait for its end: why it ended, and the end of its log."""
        self._local.start([Order(worker, invitation)])
        while (status := self._local.status().get(worker)) is not None:
            if status.ended:
                return status.reason, self._local.logs(worker)
            time.sleep(_LOOK_EVERY_S)
        return "it was stopped", ""

    def logs(self, worker: str) -> str:
        """The end of what the worker printed."""
        return self._local.logs(worker)

    def end(self, worker: str) -> None:
        """End the worker, with what it started."""
        self._local.stop([worker])


@dataclass(frozen=True)
class Place:
    """One worker's share of a placement group."""

    group: Any
    bundle: int
    placed_by: float
    """When Ray must have found it; a replacement's start has a limit at the head."""


@dataclass
class Hired:
    """A worker, as far as Ray knows it."""

    keeper: Any
    place: Place
    located: Any
    over: Any
    node: str = ""
    """Its name, once the actor is there."""
    end: Status | None = None
    log: str = ""
