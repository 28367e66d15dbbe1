"""What a harness has claimed on this machine, and how it is cleared up.

Every run has a folder ``NUMBER-PID-START`` whose name says who owns it. The number makes bridge
and addresses unique; the name is also the mark in the environment of each of its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.engines.harness.waiting import EngineError, locked, wait_until

ROOT = Path(__file__).parents[3]
RUNS = Path("/var/lib/clusterenv-engines")
LOCK = RUNS / "runs.lock"
MAX_RUNS = 250
MARK = "CLUSTERENV_ENGINE"
"""In the environment of all processes of a run."""
ANCHOR = "CLUSTERENV_ENGINE_ANCHOR"
"""In the environment of the processes that keep a run's namespaces."""


@dataclass(frozen=True)
class Run:
    """One harness's claim."""

    number: int
    owner: int
    owner_start: int
    """In clock ticks since the machine started: a pid can come back, the pair cannot."""

    @property
    def mark(self) -> str:
        """What tells its processes from all others."""
        return f"{self.number}-{self.owner}-{self.owner_start}"

    @property
    def folder(self) -> Path:
        """Where all its files are."""
        return RUNS / self.mark

    @property
    def short_folder(self) -> Path:
        """Where its files are whose names have to be short, such as Ray's sockets."""
        return Path(f"/tmp/ce{self.number}-{self.owner}")

    @property
    def bridge(self) -> str:
        """The bridge that links its hosts with this machine."""
        return f"ce{self.number}"

    @classmethod
    def of(cls, folder: Path) -> Run:
        """The run that has this folder."""
        number, owner, start = map(int, folder.name.split("-"))
        return cls(number, owner, start)

    @property
    def env(self) -> dict[str, str]:
        """What all its processes have in their environment: the mark, and where they find the
        package that is under test, whichever one is installed."""
        package = find_spec("clusterenv")
        if package is None or package.origin is None:
            raise EngineError("there is no package clusterenv to be tested")
        return {MARK: self.mark, "PYTHONPATH": str(Path(package.origin).parents[1])}


@contextmanager
def claimed() -> Iterator[Run]:
    """A run of this process's own, cleared up at the end, also if this process is killed."""
    with locked(LOCK, 60.0):
        run = Run(_free_number(), os.getpid(), start_time(os.getpid()) or 0)
        run.folder.mkdir(mode=0o755)
    with (run.folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.engines.harness.keeper", str(run.folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield run
    finally:
        clear(run)
        keeper.kill()
        keeper.wait()


def _free_number() -> int:
    """The smallest number that no living run has; what dead runs left is cleared up first."""
    taken = set()
    for folder in RUNS.glob("*-*-*"):
        run = Run.of(folder)
        if start_time(run.owner) == run.owner_start:
            taken.add(run.number)
        else:
            _clear(run)
    for number in range(MAX_RUNS):
        if number not in taken:
            return number
    raise EngineError(f"{MAX_RUNS} harnesses run already, see {RUNS}")


def clear(run: Run) -> None:
    """Remove all that a run has on this machine, if it is still there."""
    with locked(LOCK, 60.0):
        if run.folder.exists():
            _clear(run)


def _clear(run: Run) -> None:
    with held_networks(run) as networks:

        def gone() -> bool:
            left = members(run.mark, networks)
            for pid in left:
                kill(pid)
            return not left

        wait_until(gone, f"all processes of {run.mark} gone", 20.0)
    for link in links(run):
        # Its other end may have gone with its namespace meanwhile, and it with that.
        subprocess.run(["ip", "link", "delete", link], capture_output=True, timeout=20)
    wait_until(lambda: not links(run), f"all links of {run.mark} gone", 10.0)
    shutil.rmtree(run.short_folder, ignore_errors=True)
    shutil.rmtree(run.folder)


@contextmanager
def held_networks(run: Run) -> Iterator[set[int]]:
    """The networks of the run's hosts, open: a closed one's number could soon be another's."""
    networks = set()
    with ExitStack() as held:
        for anchor in marked(run.mark, ANCHOR):
            try:
                file = held.enter_context(open(f"/proc/{anchor}/ns/net", "rb"))
            except OSError:
                continue
            networks.add(os.fstat(file.fileno()).st_ino)
        yield networks - machine_networks()


def machine_networks() -> set[int | None]:
    """The networks that no host of a harness has; an anchor that only just started is in one."""
    return {network_of(1), network_of(os.getpid())}


def links(run: Run) -> list[str]:
    """The run's network links at this machine's side: the bridge and a link per host."""
    names = os.listdir("/sys/class/net")
    return [name for name in names if name == run.bridge or name.startswith(f"{run.bridge}-")]


def members(mark: str, networks: Set[int | None] = frozenset()) -> list[int]:
    """All processes with the mark, or in one of ``networks``, but this one."""
    found = {*marked(mark, MARK), *marked(mark, ANCHOR)}
    found.update(pid for pid in pids() if network_of(pid) in networks)
    return sorted(pid for pid in found if pid != os.getpid() and start_time(pid) is not None)


def marked(mark: str, name: str) -> list[int]:
    """The processes that were started with ``name=mark`` in their environment."""
    wanted = f"{name}={mark}".encode()
    return [pid for pid in pids() if wanted in _proc(pid, "environ").split(b"\0")]


def cmdline(pid: int) -> str:
    """A process's command line."""
    return _proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def network_of(pid: int) -> int | None:
    """The number of a process's network namespace."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def pids() -> list[int]:
    """All processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks; None if it has ended, be it a zombie or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kill(pid: int) -> None:
    """End a process with -9, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
