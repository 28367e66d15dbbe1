"""Ends a worker whose host is gone, and one whose env hangs, even while env code runs.

A thread does it. Where env code holds the GIL and the thread cannot run, the kernel ends the
process when the host's end of standard input closes, and faulthandler's C thread, which this one
re-arms, dumps the stacks and ends it when it hangs.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
import time

from clusterenv.lifelines import EXIT_HOST_GONE, leads_its_group
from clusterenv.worker.worker import Deadlines

EXIT_HUNG = 72
_TICK_S = 0.5


class Lifeline(threading.Thread):
    """Watches the host's end of our standard input, and the worker's progress."""

    def __init__(self, deadlines: Deadlines) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._deadlines = deadlines
        self._parent = os.getppid()

    def run(self) -> None:
        """Tick until something ends the process."""
        while True:
            faulthandler.dump_traceback_later(self._allowed_s() + _TICK_S, exit=True)
            readable, _, _ = select.select([0], [], [], _TICK_S)
            if readable and not os.read(0, 4096):
                _end("the host is gone: standard input was closed", EXIT_HOST_GONE)
            if os.getppid() != self._parent:
                _end("the process that started this worker is gone", EXIT_HOST_GONE)
            self._check_progress()

    def _allowed_s(self) -> float:
        """How long the GIL may be held: as long as the worker may take for what it does now."""
        deadline = self._deadlines.deadline
        remaining_s = 0.0 if deadline is None else deadline - time.monotonic()
        return max(remaining_s, self._deadlines.step_timeout_s)

    def _check_progress(self) -> None:
        limits, deadline = self._deadlines, self._deadlines.deadline
        if deadline is not None and time.monotonic() > deadline:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            _end(
                f"no progress within step_timeout_s={limits.step_timeout_s:g} "
                f"(startup_timeout_s={limits.startup_timeout_s:g} while building envs)",
                EXIT_HUNG,
            )


def _end(reason: str, code: int) -> None:
    print(f"clusterenv worker ends: {reason}", file=sys.stderr, flush=True)
    if code == EXIT_HOST_GONE and leads_its_group():
        # What an env started goes too; nobody is left to read an exit code.
        os.killpg(0, signal.SIGKILL)
    os._exit(code)
