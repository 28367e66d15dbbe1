"""What every launcher can do, and how many cores there are here."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

THREAD_NAME = "clusterenv"
"""Every thread of a run has a name that begins so."""

PLACE_VARIABLE = "CLUSTERENV_PLACE"
"""Where a host that comes with a ticket finds the name of the place that it runs in."""


@dataclass(frozen=True)
class Order:
    """One host to start."""

    host: str
    """Its name: ``host-3.1`` is the second to run in the run's fourth place."""
    invitation: bytes = field(repr=False)
    """One line of text, to be delivered in secret: never on a command line, never in a
    world-readable file. Where the launcher ``enrols``, it is a ticket that is the same for all."""


@dataclass(frozen=True)
class Status:
    """How a host is, as far as its engine knows."""

    ended: bool
    reason: str = ""
    """Why it ended or why it waits, in the engine's words."""


class Launcher(Protocol):
    """Starts copies of one command, says which are alive, and ends them. Knows nothing else.

    The command is ``python -m clusterenv host``. It reads its invitation from the first line of
    standard input, or from the variable ``CLUSTERENV_INVITATION``, or with ``--key-file``.
    """

    @property
    def towards(self) -> str:
        """Where hosts will be: the head listens on the interface that leads there."""

    @property
    def trusted(self) -> bool:
        """Whether hosts are processes of this machine that this process itself started."""

    @property
    def enrols(self) -> bool:
        """Whether hosts come with a ticket, all with the same, and learn from the head which host
        they are, instead of being started with an invitation of their own."""

    @property
    def watch_every_s(self) -> float:
        """How often asking for the status is cheap enough."""

    @property
    def num_hosts(self) -> int:
        """How many hosts to start; 0: the host is an object in the head's own process."""

    @property
    def workers_per_host(self) -> int | None:
        """How many workers each host runs; None: as many as it finds cores where it runs."""

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""

    def status(self) -> dict[str, Status]:
        """Each host that was started and not yet stopped."""

    def logs(self, host: str) -> str:
        """The end of what the host and its workers printed."""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts, forget them; let them end by themselves for ``grace_s`` first."""

    def enrolled(self, host: str, place: str) -> None:
        """A host that came with a ticket was given this name; ``place`` is where it says it runs
        (``CLUSTERENV_PLACE`` there), empty if it does not know."""


def cores() -> int:
    """How many cores this process may use: those of its affinity, as far as its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = cgroup_quota(_read)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_quota(read: Callable[[str], str | None]) -> float | None:
    """How many cores' time the cgroups of this process may use; None without a limit.

    Args:
        read: The text of a file, or None if there is no such file.
    """
    quotas = []
    for folder, is_v2 in _cgroup_folders(read("/proc/self/cgroup") or ""):
        if is_v2:
            quota, _, period = (read(f"{folder}/cpu.max") or "").strip().partition(" ")
        else:
            quota = (read(f"{folder}/cpu.cfs_quota_us") or "").strip()
            period = (read(f"{folder}/cpu.cfs_period_us") or "").strip()
        # "max" (v2), -1 (v1) and a missing file are no limit.
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_folders(listed: str) -> Iterator[tuple[str, bool]]:
    """The folders of the process's cpu cgroups up to the root, from ``/proc/self/cgroup``.

    Any of them may hold the limit. A container may see paths that do not exist there: then its
    own limit is at what it takes for the root.
    """
    for line in listed.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts = [("/sys/fs/cgroup", True), ("/sys/fs/cgroup/unified", True)]
        if number != "0":
            mounts = [("/sys/fs/cgroup/cpu", False), ("/sys/fs/cgroup/cpu,cpuacct", False)]
            if "cpu" not in controllers.split(","):
                continue
        below = PurePosixPath(path.lstrip("/"))
        for mount, is_v2 in mounts:
            for folder in (below, *below.parents):
                yield str(PurePosixPath(mount) / folder), is_v2


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()
    return None
