"""What runs in the actors of `RayLauncher`, and what the head knows about each."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.local import LocalLauncher

_LOOK_EVERY_S = 0.1


class HostActor:
    """Keeps one host on its node, with a `LocalLauncher`.

    The host is a process of its own, and ends with this one, because its standard input closes.
    """

    def __init__(self, environment: dict[str, str], log_dir: str | None) -> None:
        self._local = LocalLauncher(1, log_dir, environment)

    def where(self) -> str:
        """The name of the node."""
        return socket.gethostname()

    def run(self, host: str, invitation: bytes) -> tuple[str, str]:
        """Start the host and wait for its end: why it ended, and the end of its log."""
        self._local.start([Order(host, invitation)])
        while (status := self._local.status().get(host)) is not None:
            if status.ended:
                return status.reason, self._local.logs(host)
            time.sleep(_LOOK_EVERY_S)
        return "it was stopped", ""

    def logs(self, host: str) -> str:
        """The end of what the host printed."""
        return self._local.logs(host)

    def end(self, host: str) -> None:
        """End the host and what it started."""
        self._local.stop([host])


@dataclass(frozen=True)
class Bundle:
    """One host's share of a placement group."""

    group: Any
    number: int
    placed_by: float
    """When Ray must have found a node for it; the head limits the start of replacements."""


@dataclass
class RayHost:
    """A host, as far as Ray knows it."""

    actor: Any
    bundle: Bundle
    located: Any
    over: Any
    node: str = ""
    """The node's name, once the actor is there."""
    end: Status | None = None
    log: str = ""

    @property
    def group(self) -> Any:
        """The placement group that it is in."""
        return self.bundle.group
