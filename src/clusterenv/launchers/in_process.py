"""Workers as threads of the head: breakpoints and profilers work. Not for speed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence

from clusterenv.launchers.base import THREAD_NAME, Order, Status
from clusterenv.wire.invitation import Invitation
from clusterenv.worker.worker import Worker


class _Thread(threading.Thread):
    def __init__(self, order: Order, turn: threading.Lock) -> None:
        super().__init__(name=f"{THREAD_NAME} {order.worker}", daemon=True)
        self._turn = turn
        self._invitation = Invitation.from_bytes(order.invitation)
        self.log = ""

    def run(self) -> None:
        worker = Worker.connect(self._invitation)
        worker.turn = self._turn
        try:
            worker.run()
        except BaseException:  # what would end a process ends this thread
            self.log = traceback.format_exc()
        finally:
            worker.disconnect()


class InProcessLauncher:
    """Each worker is a thread of the head, over the same wire as any other worker."""

    towards = "127.0.0.1"
    spawns_here = True
    enrols = False
    shares_memory = False
    watch_every_s = 0.1

    def __init__(self) -> None:
        self._threads: dict[str, _Thread] = {}
        # One at a time: envs of one process may share a renderer or a simulator.
        self._turn = threading.Lock()

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        for order in orders:
            self._threads[order.worker] = _Thread(order, self._turn)
            self._threads[order.worker].start()

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped."""
        return {
            worker: Status(ended=not thread.is_alive(), reason="its thread ended")
            for worker, thread in list(self._threads.items())
        }

    def logs(self, worker: str) -> str:
        """The traceback that ended the worker, if one did."""
        thread = self._threads.get(worker)
        return thread.log if thread is not None else ""

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """Wait for these workers and forget them; a thread cannot be killed."""
        for worker in workers:
            thread = self._threads.pop(worker, None)
            if thread is not None:
                thread.join(grace_s)
