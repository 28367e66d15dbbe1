"""``python -m clusterenv worker``: the one command that every launcher starts."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from clusterenv.wire.invitation import Invitation
from clusterenv.worker.lifeline import Lifeline
from clusterenv.worker.worker import Worker


def run_worker() -> None:
    """Read the invitation from standard input, work until the head says Close, and end."""
    faulthandler.enable()
    os.environ["CLUSTERENV_WORKER"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "SCHED_BATCH"):
        # A worker that is woken must not push the head aside before it has woken the others.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    invitation = Invitation.from_bytes(_read_line(0))
    # Standard input is the lifeline now; env code that asks for input gets end of file.
    sys.stdin = open(os.devnull)  # noqa: SIM115
    worker = Worker.connect(invitation)
    worker.forward_warnings()
    Lifeline(worker, invitation).start()
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
            raise SystemExit(
                "clusterenv worker: no invitation on standard input; "
                "workers are started by a launcher, see ClusterEnv(launcher=…)"
            )
        line += byte
    return line
