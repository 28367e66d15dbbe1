"""The far end of :class:`clusterenv.AttachLauncher`: what a user starts on a machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from clusterenv.children import in_words, python_environment
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE

_FINAL = {0, 1, 2}
"""Exit codes of a host that is no longer wanted, or that has said what is wrong here."""
_PAUSE_S = 1.0


def keep_attached(ticket: bytes, workers: int | None = None) -> int:
    """Run a host with this ticket; when it crashes or loses its head, start another one.

    The host is a process of its own, so that nothing is left over for the next one. It ends
    with this process, however that ends. SIGTERM, SIGINT and SIGUSR1 make it hand its slots back
    and leave; a second signal ends it at once.

    Args:
        ticket: One line of text.
        workers: How many workers the host runs; by default as the ticket says, or one per core.

    Returns:
        The exit code of the last host.
    """
    attendant = _Attendant(workers)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, attendant.leave)
    while True:
        code = attendant.run(ticket)
        if attendant.is_leaving or code in _FINAL:
            return max(code, 0)
        text = f"clusterenv host: it ended ({in_words(code)}); applying again"
        print(text, file=sys.stderr, flush=True)
        attendant.pause()


class _Attendant:
    def __init__(self, workers: int | None) -> None:
        options = [] if workers is None else ["--workers", f"{workers}"]
        self._command = [sys.executable, "-m", "clusterenv", "host", *options]
        self._host: subprocess.Popen[bytes] | None = None
        self.is_leaving = False

    def run(self, ticket: bytes) -> int:
        environment = {**os.environ, **python_environment()}
        environment.pop(ENVIRONMENT_VARIABLE, None)
        self._host = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=environment, start_new_session=True
        )
        stdin = self._host.stdin
        assert stdin is not None
        # The pipe stays open: when it closes, the host ends.
        with contextlib.suppress(BrokenPipeError):
            os.write(stdin.fileno(), ticket + b"\n")
        code = self._host.wait()
        stdin.close()
        return code

    def pause(self) -> None:
        self._host = None
        time.sleep(_PAUSE_S)

    def leave(self, number: int, _: FrameType | None) -> None:
        if self._host is None:
            raise SystemExit(0)
        # In its first moments a host has nothing to hand back, and simply ends.
        self._host.send_signal(signal.SIGKILL if self.is_leaving else signal.SIGTERM)
        self.is_leaving = True
