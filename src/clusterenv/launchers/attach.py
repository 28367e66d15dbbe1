"""Hosts that somebody else starts, by hand or with any tool that can run a command."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clusterenv.counts import check_count
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.parameters import names_valid_parameters
from clusterenv.wire.addresses import ANYWHERE

_log = logging.getLogger("clusterenv")


class AttachLauncher:
    """Waits for hosts that are started elsewhere.

    The run's ticket is written to ``key_file``, which only its owner can read. Copy it to the
    machines (it is a secret: anyone who has it can join the run), and on each of them start

    ``python -m clusterenv host --key-file KEY_FILE``

    A host runs as many workers as its machine has cores, unless ``--workers N`` says otherwise. If
    there are more hosts than the run has places for, the others wait as spares, and take over when
    a host is lost. A host that crashed or was cut off applies again by itself.

    Args:
        key_file: Where to write the ticket. It is removed when the run ends.
        hosts: How many hosts the run waits for.
        towards: An address where hosts will be, which decides the interface to listen on. By
            default that of the default route.
    """

    trusted = False
    enrols = True
    watch_every_s = 1.0
    workers_per_host: int | None = None

    @names_valid_parameters
    def __init__(self, key_file: str | Path, hosts: int = 1, towards: str = ANYWHERE) -> None:
        self.key_file = Path(key_file).expanduser()
        self.num_hosts = check_count("hosts", hosts, advice="say how many hosts to wait for")
        self.towards = towards
        self._ticket = b""
        self._expected: set[str] = set()

    def start(self, orders: Sequence[Order]) -> None:
        """Write the ticket; the hosts come when somebody starts them."""
        if not self._expected:
            self._write(orders[0].invitation)
        self._expected.update(order.host for order in orders)
        _log.warning(
            "waiting for %d host(s): python -m clusterenv host --key-file %s",
            len(orders),
            self.key_file,
        )

    def _write(self, ticket: bytes) -> None:
        # A new file: nobody who has an old one open can read it, and nobody reads half of it.
        with tempfile.NamedTemporaryFile(
            dir=self.key_file.parent, prefix=f".{self.key_file.name}.", delete=False
        ) as file:
            file.write(ticket)
        os.replace(file.name, self.key_file)
        self._ticket = ticket

    def status(self) -> dict[str, Status]:
        """Only the connection can tell how they are."""
        # A copy: the watcher asks while the user's thread replaces hosts.
        return {
            host: Status(ended=False, reason="its log is where it was started")
            for host in list(self._expected)
        }

    def logs(self, host: str) -> str:
        """The log is where the host was started."""
        return ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """Forget them: without the head they end by themselves, after ``lease_s`` at the latest."""
        self._expected.difference_update(hosts)
        if not self._expected:
            with contextlib.suppress(FileNotFoundError):
                # Another run may have written its own ticket there meanwhile.
                if self.key_file.read_bytes() == self._ticket:
                    self.key_file.unlink()

    def enrolled(self, host: str, place: str) -> None:
        """Nothing to note: whoever started it knows where it is."""
