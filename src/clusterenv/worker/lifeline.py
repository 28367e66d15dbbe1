"""Ends a worker whose head is gone, and one whose env hangs, even while env code runs.

A thread does it. Where env code holds the GIL and the thread cannot run, the kernel ends the
process when the head's end of standard input closes, and faulthandler's C thread, which this one
re-arms, dumps the stacks and ends it when it hangs.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
import time

from clusterenv.wire.addresses import why_unreachable
from clusterenv.wire.contact import Contact
from clusterenv.wire.invitation import Invitation
from clusterenv.worker.worker import Worker

EXIT_HEAD_GONE = 71
EXIT_HUNG = 72
_TICK_S = 0.5
# A silent head counts as gone after up to four fifths of the lease.
_LEFT_OF_LEASE = 0.2


class Lifeline(threading.Thread):
    """Watches the head's end of our standard input, the connection, and the worker's progress.

    Where standard input is not the head's, the connection alone says whether the head is there.
    """

    def __init__(
        self,
        worker: Worker,
        invitation: Invitation,
        watch_input: bool,
        exit_without_head: int = EXIT_HEAD_GONE,
    ) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._exit_without_head = exit_without_head
        self._watch_input = watch_input
        self._worker = worker
        self._invitation = invitation
        self._parent = os.getppid()
        self._in_contact_at = time.monotonic()

    def run(self) -> None:
        """Tick until something ends the process."""
        while True:
            faulthandler.dump_traceback_later(self._allowed_s() + _TICK_S, exit=True)
            self._wait_for_end_of_input(_TICK_S)
            if self._watch_input and os.getppid() != self._parent:
                self._end("the process that started this worker is gone")
            self._check_connection()
            self._check_progress()

    def _wait_for_end_of_input(self, seconds: float) -> None:
        if not self._watch_input:
            time.sleep(seconds)
            return
        readable, _, _ = select.select([0], [], [], seconds)
        if readable and not os.read(0, 4096):
            self._end("the head is gone: standard input was closed")

    def _check_connection(self) -> None:
        now, lease_s = time.monotonic(), self._invitation.lease_s
        address = self._invitation.address
        without_s = now - self._in_contact_at
        match self._worker.socket.contact():
            case Contact.THERE:
                self._in_contact_at = now
            case Contact.REFUSED:
                reason = "another worker has its place, or the run is over"
                self._end(f"the head at {address} refused its key: {reason}")
            # It may just have been told to close, and is at it.
            case Contact.BROKEN if without_s > _LEFT_OF_LEASE * lease_s:
                self._end(f"the connection to the head at {address} broke")
            case Contact.NOT_YET if without_s > lease_s:
                reason = f"no head at {address} for lease_s={lease_s:g}"
                self._end(f"{reason}: {why_unreachable(address)}")

    def _allowed_s(self) -> float:
        """How long the GIL may be held: as long as the worker may take for what it does now."""
        deadline = self._worker.deadline
        remaining_s = 0.0 if deadline is None else deadline - time.monotonic()
        return max(remaining_s, self._invitation.step_timeout_s)

    def _check_progress(self) -> None:
        deadline = self._worker.deadline
        if deadline is not None and time.monotonic() > deadline:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            limits = self._invitation
            self._end(
                f"no progress within step_timeout_s={limits.step_timeout_s:g} "
                f"(startup_timeout_s={limits.startup_timeout_s:g} while building envs)",
                EXIT_HUNG,
            )

    def _end(self, reason: str, code: int | None = None) -> None:
        code = self._exit_without_head if code is None else code
        print(f"clusterenv worker ends: {reason}", file=sys.stderr, flush=True)
        if code == EXIT_HEAD_GONE and _leads_its_group():
            # What an env started goes too; nobody is left to read an exit code.
            os.killpg(0, signal.SIGKILL)
        os._exit(code)


def end_with_input() -> None:
    """Let the kernel send SIGIO, which ends a process, when standard input closes."""
    if hasattr(os, "O_ASYNC"):
        if not _leads_its_group():
            # What an env starts is to end with this process, and nobody else.
            os.setpgid(0, 0)
        fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0] and not os.read(0, 1):
        raise SystemExit(EXIT_HEAD_GONE)


def _leads_its_group() -> bool:
    return os.getpgrp() == os.getpid()
