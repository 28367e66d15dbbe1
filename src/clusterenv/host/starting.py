"""Starts workers, as processes on this machine or as threads of this process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from clusterenv import bell
from clusterenv.children import ChildProcess, python_environment
from clusterenv.errors import StartupError
from clusterenv.host.output import WorkerOutput
from clusterenv.host.plan import WorkerSetup
from clusterenv.host.thread_stacks import is_in_debugger, stack_of
from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.pulse import STACKS_FOLLOW
from clusterenv.memory.segments import kept_from_children
from clusterenv.strays import Family
from clusterenv.worker.deadlines import Deadlines
from clusterenv.worker.loop import WorkerLoop
from clusterenv.worker.main import Start

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""For workers' environment: each owns one core, and more threads would only compete for it."""
_THREAD_GRACE_S = 0.1
_LAST_OUTPUT_S = 1.0


class Running(Protocol):
    """A worker that was started."""

    @property
    def pid(self) -> int:
        """The process it runs in."""

    def how_it_ended(self) -> str | None:
        """How it ended, in words; None while it runs."""

    def log_tail(self) -> str:
        """The end of what it printed."""

    def wait(self, deadline: float) -> None:
        """Give it until ``deadline``, on the monotonic clock, to end by itself."""

    def kill(self) -> None:
        """End it at once."""


class NotStarted:
    """Stands in for a worker that will be started later."""

    pid = 0

    def how_it_ended(self) -> str | None:
        """None: it has not begun."""
        return None

    def log_tail(self) -> str:
        """Empty: it has printed nothing."""
        return ""

    def wait(self, deadline: float) -> None:
        """Do nothing: there is nothing to wait for."""

    def kill(self) -> None:
        """Do nothing: there is nothing to end."""


class Starter(Protocol):
    """Starts workers."""

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""

    def close(self) -> None:
        """Clean up; all workers have ended, and no more will be started."""

    def end_strays(self, name: str | None = None) -> None:
        """End what the envs of this worker, which is gone, or of all workers have left running."""

    def is_debugging(self) -> bool:
        """Whether a debugger has stopped a worker, so that all of them may take their time."""


class ProcessStarter:
    """Each worker is a process.

    Args:
        environment: Environment variables for the workers, on top of this process's own.
        log_dir: Where each worker's output goes; by default to unnamed files.
        copy_to: The descriptor that their output is copied to.
        heed_signals: Whether a worker leaves on SIGTERM or SIGUSR1. On other machines an engine
            sends these to all processes of a job, and it is the host that leaves.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        copy_to: int | None = None,
        heed_signals: bool = True,
    ) -> None:
        own = {**ONE_THREAD, **python_environment()}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._log_dir, self._heed_signals = log_dir, heed_signals
        if log_dir is not None:
            _make_folder(log_dir)
        self._output = WorkerOutput(copy_to)
        self._family = Family()

    @classmethod
    def of(cls, setup: WorkerSetup, host: str, copy_to: int) -> ProcessStarter:
        """For a host that is a process of its own."""
        log_dir = Path(setup.log_dir) / host if setup.log_dir else None
        return cls(hash_environment(setup.hash_seed), log_dir, copy_to, heed_signals=False)

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""
        start = msgspec.structs.replace(start, heeds_signals=self._heed_signals)
        log = self._log_dir and self._log_dir / f"{name}.log"
        child = ChildProcess(
            [sys.executable, "-m", "clusterenv.worker.main"],
            start.to_bytes(),
            {**self._environment, **self._family.mark(name)},
            log,
            msgspec.structs.astuple(start.descriptors),
            own_session=False,
        )
        self._output.follow(name, child)
        if self._output.ident is None:
            self._output.start()
        return child

    def close(self) -> None:
        """Copy the last output of the workers, which have all ended, unless that takes long."""
        self._output.close(_LAST_OUTPUT_S)

    def end_strays(self, name: str | None = None) -> None:
        """End what the envs of this worker, which is gone, or of all workers have left running."""
        self._family.end(name)

    def is_debugging(self) -> bool:
        """Always False: nobody can type into a worker process."""
        return False


def hash_environment(hash_seed: int | None) -> dict[str, str]:
    """The environment variable that gives a Python this hash seed."""
    return {} if hash_seed is None else {"PYTHONHASHSEED": f"{hash_seed}"}


def _make_folder(log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"log_dir={str(log_dir)!r} cannot be made here: {error}; name a folder that every "
            "machine with workers can make or has"
        ) from error


class ThreadStarter:
    """Each worker is a thread of this process, so that breakpoints and profilers work."""

    def __init__(self) -> None:
        # One at a time: envs of one process may share a renderer or a simulator.
        self._turn = threading.Lock()
        self._threads: weakref.WeakSet[_WorkerThread] = weakref.WeakSet()

    def start(self, name: str, start: Start) -> Running:
        """Start a worker; do not wait for it."""
        thread = _WorkerThread(name, start, self._turn)
        thread.start()
        self._threads.add(thread)
        return thread

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def end_strays(self, name: str | None = None) -> None:
        """Do nothing: what an env starts belongs to this process, and the user ends it."""

    def is_debugging(self) -> bool:
        """Whether a worker is inside a debugger; the others wait for their turn meanwhile."""
        return any(is_in_debugger(thread.ident) for thread in self._threads if thread.is_alive())


class _WorkerThread(threading.Thread):
    def __init__(self, name: str, start: Start, turn: threading.Lock) -> None:
        super().__init__(name=f"clusterenv {name}", daemon=True)
        # Own copies: the host closes its descriptors whatever this thread's envs are still doing.
        self._descriptors = start.descriptors.duplicated()
        with kept_from_children():
            self._line = WorkerEnd(self._descriptors, spins=False)
        self._deadlines = Deadlines(start.step_timeout_s, start.startup_timeout_s)
        self._doorbell = start.descriptors.doorbell
        self._turn, self._log = turn, ""

    @property
    def pid(self) -> int:
        return os.getpid()

    def run(self) -> None:
        worker = WorkerLoop(self._line, self._deadlines)
        worker.turn = self._turn
        try:
            with kept_from_children():
                worker.run()
        except BaseException:  # what would end a process ends this thread
            self._log = traceback.format_exc()
        finally:
            self._descriptors.close()

    def how_it_ended(self) -> str | None:
        return None if self.is_alive() else "its thread ended"

    def log_tail(self) -> str:
        """Its last traceback; or its stack, while it runs."""
        stack = stack_of(self.ident) if self.is_alive() else ""
        return f"{STACKS_FOLLOW}\n{stack}" if stack else self._log

    def wait(self, deadline: float) -> None:
        self.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """A thread cannot be killed: it ends when its envs return."""
        if not self._line.is_over:
            self._line.is_over = True
            # If the bell is a pipe, this is the end to wait on: the thread wakes up when the host
            # closes the other one.
            with contextlib.suppress(OSError):
                bell.ring(self._doorbell)
            self.join(_THREAD_GRACE_S)
