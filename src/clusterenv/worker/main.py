"""The worker process, started by its host; what both share is inherited as descriptors."""

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
from clusterenv.memory.segments import kept_from_children
from clusterenv.worker.deadlines import Deadlines
from clusterenv.worker.lifeline import Lifeline
from clusterenv.worker.loop import WorkerLoop


class Start(msgspec.Struct, frozen=True):
    """What a worker is told first, as one line on standard input."""

    descriptors: Descriptors
    step_timeout_s: float
    startup_timeout_s: float
    slow_warning_s: float = 30.0
    heeds_signals: bool = True
    """Whether signals make it leave; otherwise they are for its host."""

    def to_bytes(self) -> bytes:
        """One line of text."""
        return msgspec.json.encode(self) + b"\n"


def main() -> NoReturn:
    """Work until the host says Close, and end."""
    with kept_from_children():
        _work()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not `return`: env libraries may leave threads that would keep the interpreter alive.
    os._exit(0)


def _work() -> None:
    faulthandler.enable()
    os.environ["CLUSTERENV_WORKER"] = "0"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):
        # A worker that wakes up must not preempt the head before it has woken the others.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    start = msgspec.json.decode(_read_line(0), type=Start)
    end_with_input()
    # Standard input is the lifeline now; env code that reads input gets end of file.
    sys.stdin = open(os.devnull)  # noqa: SIM115
    deadlines = Deadlines(start.step_timeout_s, start.startup_timeout_s)
    line = WorkerEnd(start.descriptors)
    worker = WorkerLoop(line, deadlines)
    worker.forward_warnings()
    if start.heeds_signals:
        worker.leave_on(signal.SIGTERM, signal.SIGUSR1)
    else:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            # Not SIG_IGN, which processes started by envs would inherit.
            signal.signal(number, lambda *_: None)
    Lifeline(deadlines, line.mailbox, start.slow_warning_s).start()
    worker.run()


def _read_line(fd: int) -> bytes:
    # Unbuffered, so that nothing of what follows is consumed.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit("clusterenv worker: workers are started by a host, not by hand")
        line += byte
    return line


if __name__ == "__main__":
    main()
