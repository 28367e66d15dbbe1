"""Workers that somebody else starts: by hand, or by any tool that can run a command."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clusterenv.launchers.base import Order, Status
from clusterenv.wire.addresses import ANYWHERE

_log = logging.getLogger("clusterenv")


class AttachLauncher:
    """Waits for workers that come by themselves.

    The run's ticket is written to ``key_file``, which only its owner can read. Copy it to wherever
    workers are to run (it is a secret: whoever has it can join the run) and start there

    ``python -m clusterenv worker --key-file KEY_FILE``

    More workers than the run has places for wait as spares; one takes over when a worker is lost.
    A worker that crashed or was cut off applies again by itself.

    Args:
        key_file: Where to write the ticket. It is removed when the run ends.
        towards: An address of where workers will be, by which the interface to listen on is
            chosen. By default that of the default route.
    """

    spawns_here = False
    shares_memory = False
    enrols = True
    watch_every_s = 1.0

    def __init__(self, key_file: str | Path, towards: str = ANYWHERE) -> None:
        self.key_file = Path(key_file).expanduser()
        self.towards = towards
        self._ticket = b""
        self._expected: set[str] = set()

    def start(self, orders: Sequence[Order]) -> None:
        """Write the ticket; the workers come when somebody starts them."""
        if not self._expected:
            self._write(orders[0].invitation)
        self._expected.update(order.worker for order in orders)
        _log.warning(
            "waiting for %d worker(s): python -m clusterenv worker --key-file %s",
            len(orders),
            self.key_file,
        )

    def _write(self, ticket: bytes) -> None:
        # A new file, so that nobody who had opened an old one can read it, and never half of it.
        with tempfile.NamedTemporaryFile(
            dir=self.key_file.parent, prefix=f".{self.key_file.name}.", delete=False
        ) as file:
            file.write(ticket)
        os.replace(file.name, self.key_file)
        self._ticket = ticket

    def status(self) -> dict[str, Status]:
        """Nobody but the connection knows how they are."""
        return {
            worker: Status(ended=False, reason="its log is where it was started")
            for worker in self._expected
        }

    def logs(self, worker: str) -> str:
        """The log is where the worker was started."""
        return ""

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """Forget them: without the head they end by themselves, after ``lease_s`` at the latest."""
        self._expected.difference_update(workers)
        if not self._expected:
            with contextlib.suppress(FileNotFoundError):
                # Another run may have written its own ticket there meanwhile.
                if self.key_file.read_bytes() == self._ticket:
                    self.key_file.unlink()
