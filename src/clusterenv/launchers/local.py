"""Workers as processes on this machine: the default."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    log: Path


class LocalLauncher:
    """One process per worker, started with ``python -m clusterenv worker``.

    A worker's invitation arrives on its standard input, which then stays open: when it closes,
    the head is gone and the worker ends.

    Args:
        log_dir: Where each worker's output goes (``worker-0.0.log`` …). By default a temporary
            directory that is removed when the run ends.
        environment: Environment variables for the workers, on top of this process's own.
    """

    host = "127.0.0.1"
    spawns_here = True
    shares_memory = True
    watch_every_s = 0.1

    def __init__(
        self, log_dir: str | Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self._keep_logs = log_dir is not None
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._environment = environment or {}
        self._children: dict[str, _Child] = {}

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        if self._log_dir is None:
            self._log_dir = Path(tempfile.mkdtemp(prefix="clusterenv-"))
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for order in orders:
            self._children[order.worker] = self._spawn(order, self._log_dir)

    def _spawn(self, order: Order, log_dir: Path) -> _Child:
        log = log_dir / f"{order.worker}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "clusterenv", "worker"],
                stdin=subprocess.PIPE,
                stdout=output,
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

    def _worker_environment(self) -> dict[str, str]:
        # The worker must find this very package, however the head came by it.
        package_root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        return {**os.environ, **_ONE_THREAD, "PYTHONPATH": path, **self._environment}

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped."""
        return {worker: _status(child.process.poll()) for worker, child in self._children.items()}

    def logs(self, worker: str) -> str:
        """The end of what the worker printed."""
        child = self._children.get(worker)
        if child is None or not child.log.exists():
            return ""
        with child.log.open("rb") as file:
            file.seek(max(0, child.log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
        children = [self._children[worker] for worker in workers if worker in self._children]
        deadline = time.monotonic() + grace_s
        for child in children:
            _wait(child.process, deadline - time.monotonic())
        for child in children:
            _kill(child.process)
        for worker in workers:
            self._children.pop(worker, None)
        if not self._children:
            self._remove_logs()

    def _remove_logs(self) -> None:
        if self._log_dir is not None and not self._keep_logs:
            shutil.rmtree(self._log_dir, ignore_errors=True)
            self._log_dir = None


def _status(code: int | None) -> Status:
    if code is None:
        return Status(ended=False)
    if code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return Status(ended=True, reason=f"killed by {signal.Signals(-code).name}{hint}")
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
