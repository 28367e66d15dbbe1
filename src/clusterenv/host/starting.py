"""How workers come to be: as processes of this machine, or as threads of this process."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from clusterenv import bell
from clusterenv.children import ChildProcess, python_environment
from clusterenv.host.output import WorkerOutput
from clusterenv.memory.line import WorkerEnd
from clusterenv.worker.main import Start
from clusterenv.worker.worker import Deadlines, Worker

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""For the environment of workers: each owns one core, and more threads would only fight."""
_THREAD_GRACE_S = 0.1


class Running(Protocol):
    """A worker that was started."""

    @property
    def pid(self) -> int:
        """The process that it is in."""

    def how_it_ended(self) -> str | None:
        """In words; None while it runs."""

    def log_tail(self) -> str:
        """The end of what it printed."""

    def wait(self, deadline: float) -> None:
        """Let it end by itself until then, on the monotonic clock."""

    def kill(self) -> None:
        """End it at once."""


class Starter(Protocol):
    """Starts workers."""

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""


class ProcessStarter:
    """Each worker is a process.

    Args:
        environment: Environment variables for the workers, on top of this process's own.
        log_dir: Where each worker's output goes; by default to files without a name.
        output: Where their output goes as well.
        heed_signals: Whether a worker that gets SIGTERM or SIGUSR1 leaves. On other machines an
            engine sends these to all processes of a job, and it is the host that leaves.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        output: WorkerOutput | None = None,
        heed_signals: bool = True,
    ) -> None:
        own = {**ONE_THREAD, **python_environment()}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._log_dir, self._output, self._heed_signals = log_dir, output, heed_signals

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""
        start = msgspec.structs.replace(start, heeds_signals=self._heed_signals)
        log = self._log_dir and self._log_dir / f"{name}.log"
        child = ChildProcess(
            [sys.executable, "-m", "clusterenv.worker.main"],
            start.to_bytes(),
            self._environment,
            log,
            msgspec.structs.astuple(start.descriptors),
            own_session=False,
        )
        if self._output is not None:
            self._output.follow(name, child)
        return child


class ThreadStarter:
    """Each worker is a thread of this process: breakpoints and profilers work."""

    def __init__(self) -> None:
        # One at a time: envs of one process may share a renderer or a simulator.
        self._turn = threading.Lock()

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""
        thread = _WorkerThread(name, start, self._turn)
        thread.start()
        return thread


class _WorkerThread(threading.Thread):
    def __init__(self, name: str, start: Start, turn: threading.Lock) -> None:
        super().__init__(name=f"clusterenv {name}", daemon=True)
        # The host closes its own, whatever the envs of this thread are still doing.
        self._descriptors = start.descriptors.duplicated()
        self._line = WorkerEnd(self._descriptors, spins=False)
        self._deadlines = Deadlines(start.step_timeout_s, start.startup_timeout_s)
        self._doorbell = start.descriptors.doorbell
        self._turn, self._log = turn, ""

    @property
    def pid(self) -> int:
        return os.getpid()

    def run(self) -> None:
        worker = Worker(self._line, self._deadlines)
        worker.turn = self._turn
        try:
            worker.run()
        except BaseException:  # what would end a process ends this thread
            self._log = traceback.format_exc()
        finally:
            self._descriptors.close()

    def how_it_ended(self) -> str | None:
        return None if self.is_alive() else "its thread ended"

    def log_tail(self) -> str:
        return self._log

    def wait(self, deadline: float) -> None:
        self.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """A thread cannot be killed: it ends when its envs return."""
        if not self._line.is_over:
            self._line.is_over = True
            bell.ring(self._doorbell)
            self.join(_THREAD_GRACE_S)
