"""The far end of :class:`AttachLauncher`: what somebody starts there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from clusterenv.launchers.local import LocalLauncher
from clusterenv.launchers.processes import how_it_ended
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE

_FINAL = {0, 1, 2}
"""Exit codes of a worker that is no longer wanted, or that says what is wrong here."""
_PAUSE_S = 1.0


def keep_attached(ticket: bytes) -> int:
    """Run a worker with this ticket; when it crashes or loses its head, let another one apply.

    The worker is a process of its own, so that nothing of what its envs did stays with the next.
    It ends with this process, however that ends. SIGTERM, SIGINT and SIGUSR1 make it hand its
    slots back and leave; the second one ends it at once.

    Returns:
        The exit code of the last worker.
    """
    attendant = _Attendant()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, attendant.leave)
    while True:
        code = attendant.run(ticket)
        if attendant.is_leaving or code in _FINAL:
            return max(code, 0)
        text = f"clusterenv worker: it ended ({how_it_ended(code)}); applying again"
        print(text, file=sys.stderr, flush=True)
        attendant.pause()


class _Attendant:
    def __init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None
        self.is_leaving = False

    def run(self, ticket: bytes) -> int:
        environment = LocalLauncher().environment()
        environment.pop(ENVIRONMENT_VARIABLE, None)
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "clusterenv", "worker"],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._worker.stdin is not None
        # The pipe stays open: when it closes, the worker ends.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._worker.stdin.fileno(), ticket + b"\n")
        code = self._worker.wait()
        self._worker.stdin.close()
        return code

    def pause(self) -> None:
        self._worker = None
        time.sleep(_PAUSE_S)

    def leave(self, number: int, _: FrameType | None) -> None:
        if self._worker is None:
            raise SystemExit(0)
        # In its first moments a worker has nothing to hand back, and just ends.
        self._worker.send_signal(signal.SIGKILL if self.is_leaving else signal.SIGTERM)
        self.is_leaving = True
