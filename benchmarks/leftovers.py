"""Count what a process and its descendants have left behind: Linux only, from /proc.

Descendants are found in two ways: by their parents, and by a mark in their environment, which
also finds those whose parent has ended.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

MARK = "CLUSTERENV_BENCHMARK_MARK"


@dataclass(frozen=True)
class Leftovers:
    """What is there after a cycle; without leaks the numbers stay what they were."""

    cycle: int
    processes: int
    file_descriptors: int
    threads: int
    mappings: int
    shm_files: int
    temporary_files: int
    rss_mb: float


@contextmanager
def marked_temporary_folder() -> Iterator[Path]:
    """Mark this process's future descendants and give them a temporary folder of their own."""
    os.environ[MARK] = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        os.environ["TMPDIR"] = tempfile.tempdir = name
        yield Path(name)
        tempfile.tempdir = None


def count_leftovers(cycle: int, temporary_folder: Path) -> Leftovers:
    """Count now. Descendants include zombies, which nobody has waited for."""
    return Leftovers(
        cycle=cycle,
        processes=len(descendants() | _marked()),
        file_descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        mappings=len(Path("/proc/self/maps").read_text().splitlines()),
        shm_files=len(os.listdir("/dev/shm")),
        temporary_files=sum(1 for _ in temporary_folder.rglob("*")),
        rss_mb=_rss_mb(),
    )


def growth(counted: list[Leftovers]) -> list[str]:
    """The last count minus the first, as a table's last line; memory with its late slope."""
    first, last = asdict(counted[0]), asdict(counted[-1])
    differences = [f"{last[name] - first[name]:+d}" for name in list(first)[1:-1]]
    memory = f"{counted[-1].rss_mb - counted[0].rss_mb:+.1f}"
    late = counted[len(counted) // 2 :]
    if len(late) > 1:
        slope, _ = np.polyfit([one.cycle for one in late], [one.rss_mb * 1e3 for one in late], 1)
        memory += f" ({slope:+.0f} kB per cycle, second half)"
    return ["growth", *differences, memory]


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(ancestor: int | None = None) -> set[int]:
    """The processes that one (by default this one) has started, and those that they started."""
    ancestor = os.getpid() if ancestor is None else ancestor
    parents: dict[int, int] = {}
    for pid in _pids():
        with suppress(OSError):
            # The command's name, in parentheses, may contain spaces: split after it.
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, in steps of a clock tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """CPU time of all processes so far, those that have ended included."""
    user, nice, system, _, _, *more = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    return sum(map(int, (user, nice, system, *more))) / os.sysconf("SC_CLK_TCK")


def _marked() -> set[int]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for pid in _pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(pid)
    return found - {os.getpid()}
