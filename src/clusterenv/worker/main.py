"""The worker process: started by its host, with what both share as inherited descriptors."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from typing import NoReturn

import msgspec

from clusterenv.lifelines import end_with_input
from clusterenv.memory.line import Descriptors, WorkerEnd
from clusterenv.worker.lifeline import Lifeline
from clusterenv.worker.worker import Deadlines, Worker


class Start(msgspec.Struct, frozen=True):
    """What a worker is told first, in one line on standard input."""

    descriptors: Descriptors
    step_timeout_s: float
    startup_timeout_s: float
    heeds_signals: bool = True
    """Whether it is to leave when it is told to by a signal; otherwise these are its host's."""

    def to_bytes(self) -> bytes:
        """One line of text."""
        return msgspec.json.encode(self) + b"\n"


def main() -> NoReturn:
    """Work until the host says Close, and end."""
    faulthandler.enable()
    os.environ["CLUSTERENV_WORKER"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):
        # A worker that is woken must not push the head aside before it has woken the others.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    start = msgspec.json.decode(_read_line(0), type=Start)
    end_with_input()
    # Standard input is the lifeline now; env code that asks for input gets end of file.
    sys.stdin = open(os.devnull)  # noqa: SIM115
    deadlines = Deadlines(start.step_timeout_s, start.startup_timeout_s)
    worker = Worker(WorkerEnd(start.descriptors), deadlines)
    worker.forward_warnings()
    if start.heeds_signals:
        worker.leave_on(signal.SIGTERM, signal.SIGUSR1)
    else:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Not SIG_IGN, which would be passed on to what envs start.
            signal.signal(number, lambda *_: None)
    Lifeline(deadlines).start()
    worker.run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not `return`: env libraries may leave threads that would keep the interpreter alive.
    os._exit(0)


def _read_line(fd: int) -> bytes:
    # Unbuffered, so that nothing of what follows is swallowed.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit("clusterenv worker: workers are started by a host, not by hand")
        line += byte
    return line


if __name__ == "__main__":
    main()
