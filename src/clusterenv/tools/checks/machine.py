"""Facts about the machine that this process runs on, the head's or a worker's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from clusterenv.host.starting import ONE_THREAD
from clusterenv.launchers.base import cores
from clusterenv.memory.mailbox import Mailbox
from clusterenv.memory.segments import AVAILABLE, allocate
from clusterenv.wire.versions import versions

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "none" as a number near 2**63


class MachineFacts(msgspec.Struct):
    """What a run depends on, as seen by one process."""

    name: str
    pid: int
    versions: dict[str, str]
    address: str
    """What its own name resolves to, or empty."""
    cores: int
    cpu_limit: float | None
    """How many cores' worth of time the cgroup grants."""
    memory_limit_bytes: int | None
    memory_used_bytes: int
    """Used by the whole cgroup, if it has a limit."""
    shm_bytes: int
    shm_free_bytes: int
    open_files_limit: int
    threads: dict[str, str]
    """The variables that set the number of threads of numerical libraries; unset ones are empty."""


def machine_facts() -> MachineFacts:
    """The facts about this process's machine."""
    import resource  # not on every platform: see platforms.py

    folders = cgroup_folders(_text(Path("/proc/self/cgroup")), _CGROUP_ROOT)
    limit, used = memory_limit(folders)
    total, free = _shm()
    return MachineFacts(
        name=socket.gethostname(),
        pid=os.getpid(),
        versions=versions(),
        address=_address_of(socket.gethostname()),
        cores=cores(),
        cpu_limit=cpu_limit(folders),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        shm_bytes=total,
        shm_free_bytes=free,
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        threads={name: os.environ.get(name, "") for name in ONE_THREAD},
    )


def memory_trouble(num_bytes: int) -> str:
    """Why this much shared memory is not available, or empty."""
    if not AVAILABLE:
        return "this system has no memfd"
    num_bytes = max(num_bytes, Mailbox.SIZE)
    # Asking for more than there is would not fail: the kernel would kill processes later.
    if num_bytes > (available := available_memory()):
        return f"{available >> 20} MB of memory are available"
    fd = os.memfd_create("clusterenv-doctor", os.MFD_CLOEXEC)
    try:
        allocate(fd, num_bytes)
    except OSError as error:
        return str(error)
    finally:
        os.close(fd)
    return ""


def available_memory() -> int:
    """Bytes that this machine and this cgroup still have, with some to spare."""
    fields = dict(line.split(":") for line in _text(Path("/proc/meminfo")).splitlines())
    machine = int(fields.get("MemAvailable", "0").split()[0]) << 10
    folders = cgroup_folders(_text(Path("/proc/self/cgroup")), _CGROUP_ROOT)
    limit, used = memory_limit(folders)
    left = machine if limit is None else min(machine, limit - used)
    return max(0, left) // 4 * 3


def _address_of(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return ""


def _shm() -> tuple[int, int]:
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize


def cgroup_folders(membership: str, root: Path) -> list[Path]:
    """The folders whose limits apply to a process: its own cgroups and those above them."""
    folders: list[Path] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / controllers if controllers else root
        own = top / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    # Inside a container, its own cgroup is the root, whatever /proc says.
    return [folder for folder in folders if folder.is_dir()]


def memory_limit(folders: list[Path]) -> tuple[int | None, int]:
    """The smallest limit, and how much is used under it."""
    limits = []
    for folder in folders:
        for limit, used in [
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ]:
            number = _number(folder / limit)
            if number is not None and 0 <= number < _NO_LIMIT_BYTES:
                limits.append((number, _number(folder / used) or 0))
    return min(limits, default=(None, 0))


def cpu_limit(folders: list[Path]) -> float | None:
    """Cores' worth of time: the smallest quota over its period."""
    limits = []
    for folder in folders:
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
        quota_us, period_us = (
            _number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        if quota_us is not None and quota_us > 0 and period_us:
            limits.append(quota_us / period_us)
    return min(limits, default=None)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.lstrip("-").isdigit() else None
