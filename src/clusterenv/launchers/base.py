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
"""The name of every thread of a run begins with this."""

PLACE_VARIABLE = "CLUSTERENV_PLACE"
"""The variable in which a host that comes with a ticket finds the name of its place."""


@dataclass(frozen=True)
class Order:
    """One host to start."""

    host: str
    """Its name: ``host-3.1`` is the second host in the run's fourth place."""
    invitation: bytes = field(repr=False)
    """One line of text, to be delivered in secret: never on a command line, never in a
    world-readable file. If the launcher ``enrols``, it is a ticket, the same for all."""
    run: str = ""
    """The id of the run that it is for, as ``envs.run_id`` has it."""


@dataclass(frozen=True)
class Status:
    """The state of a host, as far as its engine knows."""

    ended: bool
    reason: str = ""
    """Why it ended or why it waits, in the engine's words."""
    is_queued: bool = False
    """Whether the engine has not started it yet; if it has ``ended``, it never will be."""


class Launcher(Protocol):
    """Starts copies of one command, says which are alive, and ends them. It knows nothing else.

    The command is ``python -m clusterenv host``. It reads its invitation from the first line of
    standard input, or from the variable ``CLUSTERENV_INVITATION``, or with ``--key-file``.
    """

    @property
    def towards(self) -> str:
        """Where hosts will be: the head listens on the interface that leads there."""

    @property
    def trusted(self) -> bool:
        """Whether hosts are processes on this machine that this process itself started."""

    @property
    def enrols(self) -> bool:
        """Whether hosts come with a ticket, the same for all, and learn from the head which host
        they are, instead of being started with an invitation each."""

    @property
    def watch_every_s(self) -> float:
        """How often the status can be asked for cheaply."""

    @property
    def num_hosts(self) -> int:
        """How many hosts to start; 0 if the host is an object in the head's own process."""

    @property
    def workers_per_host(self) -> int | None:
        """How many workers each host runs; None for one per core that it finds where it runs."""

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""

    def logs(self, host: str) -> str:
        """The end of what the host and its workers printed."""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""

    def enrolled(self, host: str, place: str) -> None:
        """Note that a host with a ticket was given this name; ``place`` is where it says it runs
        (``CLUSTERENV_PLACE`` there), empty if it does not know."""


def cores() -> int:
    """How many cores this process may use, by its affinity and its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = cgroup_quota(_read)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_quota(read: Callable[[str], str | None]) -> float | None:
    """How many cores' time the cgroups of this process may use; None without a limit.

    Args:
        read: Returns the text of a file, or None if there is no such file.
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

    Any of them may hold the limit. A container may see paths that do not exist inside it; its
    own limit is then in the folder that it sees as the root.
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
