"""Hundreds of light workers: threads of a few processes, speaking the real protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from clusterenv.launchers.base import ONE_THREAD, Order, Status
from clusterenv.wire.invitation import Invitation
from clusterenv.worker.worker import Worker


class CrowdLauncher:
    """Shares workers out to a few processes; in each, a worker is a thread with its own socket.

    For measuring the head only: the workers of a process take turns.
    """

    towards = "127.0.0.1"
    spawns_here = True
    shares_memory = False
    enrols = False
    watch_every_s = 1.0

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._process_by_worker: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, orders: Sequence[Order]) -> None:
        """Start the processes, each with its share of the workers."""
        for share in range(min(self._num_processes, len(orders))):
            own = orders[share :: self._num_processes]
            process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert process.stdin is not None
            process.stdin.write(b"".join(order.invitation + b"\n" for order in own) + b"\n")
            process.stdin.flush()
            self._process_by_worker.update({order.worker: process for order in own})

    def status(self) -> dict[str, Status]:
        """Each worker is as its process is."""
        return {
            worker: Status(process.poll() is not None, f"exit code {process.poll()}")
            for worker, process in list(self._process_by_worker.items())
        }

    def logs(self, worker: str) -> str:
        """They print to the head's own output."""
        return ""

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End the processes in which no other worker is left."""
        ending = {self._process_by_worker.pop(w) for w in workers if w in self._process_by_worker}
        for process in ending - set(self._process_by_worker.values()):
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return sorted({process.pid for process in self._process_by_worker.values()})


def main() -> None:
    """Run the workers whose invitations come on standard input, until it closes."""
    sys.path.insert(0, str(Path(__file__).parent))
    for line in iter(sys.stdin.buffer.readline, b"\n"):
        worker = Worker.connect(Invitation.from_bytes(line))
        threading.Thread(target=worker.run, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
