"""Workers that are child processes of the head, or whose client program (ssh, srun) is one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clusterenv.launchers.base import Order, Status

_LOG_TAIL_BYTES = 8_000


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class ProcessLauncher(ABC):
    """One child process per worker, with its invitation on standard input, which then stays open:
    when it closes, the head is gone and the worker ends.

    Args:
        log_dir: Where each worker's output goes (``worker-0.0.log`` …). By default it goes to
            files without a name, of which errors show the end.
    """

    enrols = False
    shares_memory: bool
    watch_every_s = 0.1

    def __init__(self, log_dir: str | Path | None = None) -> None:
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._children: dict[str, _Child] = {}
        self._oom_kills = oom_kills()

    @abstractmethod
    def command(self, worker: str) -> list[str]:
        """What to run, here, for this worker."""

    def environment(self) -> dict[str, str]:
        """The environment variables of what is run."""
        return dict(os.environ)

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        for order in orders:
            self._children[order.worker] = self._spawn(order)

    def _spawn(self, order: Order) -> _Child:
        log = self._open_log(order.worker)
        process = subprocess.Popen(
            self.command(order.worker),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=order.inherit_fds,
            env=self.environment(),
            # Ctrl-C in the terminal is for the head, which then ends its workers in order. Who
            # shares memory yields its core while it waits, and many kernels schedule sessions as
            # groups, within which a yield stays: those workers are in the head's session.
            start_new_session=not self.shares_memory,
            process_group=0 if self.shares_memory else None,
        )
        assert process.stdin is not None
        # A worker that is already gone shows in status().
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order.invitation + b"\n")
            process.stdin.flush()
        return _Child(process, log)

    def _open_log(self, worker: str) -> IO[bytes]:
        if self._log_dir is None:
            # Without a name nothing can be left behind, not even after `kill -9` of the head.
            return tempfile.TemporaryFile()
        self._log_dir.mkdir(parents=True, exist_ok=True)
        return (self._log_dir / f"{worker}.log").open("w+b")

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped."""
        # A copy: the watcher asks while the user's thread replaces workers.
        children = list(self._children.items())
        return {worker: self._status(child.process.poll()) for worker, child in children}

    def _status(self, code: int | None) -> Status:
        if code is None:
            return Status(ended=False)
        reason = how_it_ended(code)
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            reason += ": this machine ran out of memory meanwhile"
        return Status(True, reason)

    def logs(self, worker: str) -> str:
        """The end of what the worker printed."""
        child = self._children.get(worker)
        if child is None:
            return ""
        # The worker writes through the same file description: read without moving its position.
        size = os.fstat(child.log.fileno()).st_size
        start = max(0, size - _LOG_TAIL_BYTES)
        return os.pread(child.log.fileno(), _LOG_TAIL_BYTES, start).decode(errors="replace")

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
        children = [self._children[worker] for worker in workers if worker in self._children]
        deadline = time.monotonic() + grace_s
        for child in children:
            _wait(child.process, deadline - time.monotonic())
        for child in children:
            _kill(child.process)
            child.log.close()
        for worker in workers:
            self._children.pop(worker, None)


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for lack of memory, of any user."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, seconds))


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The whole session goes: an env may have started processes of its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
