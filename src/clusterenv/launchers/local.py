"""Workers as processes on this machine: the default."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clusterenv.launchers.base import Order, Status

# A worker owns one core: more threads would only fight each other.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
_LOG_TAIL_BYTES = 8_000


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class LocalLauncher:
    """One process per worker, started with ``python -m clusterenv worker``.

    A worker's invitation arrives on its standard input, which then stays open: when it closes,
    the head is gone and the worker ends.

    Args:
        log_dir: Where each worker's output goes (``worker-0.0.log`` …). By default it goes to
            files without a name, of which errors show the end.
        environment: Environment variables for the workers, on top of this process's own.
    """

    host = "127.0.0.1"
    spawns_here = True
    shares_memory = True
    watch_every_s = 0.1

    def __init__(
        self, log_dir: str | Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._environment = environment or {}
        self._children: dict[str, _Child] = {}

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        for order in orders:
            self._children[order.worker] = self._spawn(order)

    def _spawn(self, order: Order) -> _Child:
        log = self._open_log(order.worker)
        process = subprocess.Popen(
            [sys.executable, "-m", "clusterenv", "worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=order.inherit_fds,
            env=self._worker_environment(),
            # Ctrl-C in the terminal is for the head, which then ends its workers in order.
            start_new_session=True,
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

    def _worker_environment(self) -> dict[str, str]:
        # The worker must find this very package, however the head came by it.
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        # Unbuffered: what an env printed before it crashed must be in the log.
        own = {**_ONE_THREAD, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **own, **self._environment}

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped."""
        # A copy: the watcher asks while the user's thread replaces workers.
        children = list(self._children.items())
        return {worker: _status(child.process.poll()) for worker, child in children}

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


def _status(code: int | None) -> Status:
    if code is None:
        return Status(ended=False)
    if code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return Status(ended=True, reason=f"killed by {name}{hint}")
    return Status(ended=True, reason=f"exit code {code}")


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
