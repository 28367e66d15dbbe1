"""What envs start ends with their worker, even in a session of its own, or as a daemon.

Each worker has a mark among its environment variables, and all that it starts inherits it. The host
ends what bears the mark of a worker that is gone. A host that is killed cannot; so a worker whose
env has started something outside of the worker's process group starts a *guardian*: a small
process that waits for the worker's end, and ends what is left.

Not found is what has another environment (``env -i``, ``sudo``), belongs to another user, or has
overwritten its environment, as setproctitle does.
"""

# Guardians run this file as a script: it imports nothing but the standard library.
from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

VARIABLE = "CLUSTERENV_STARTED_BY"
"""Whoever is to outlive the run has to be started without it."""
_GIVE_UP_S = 2.0
_TICK_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Family:
    """The marks of one host's workers, or of hosts that this process starts."""

    def __init__(self) -> None:
        # Whoever ends this process's own strays ends theirs too.
        own = os.environ.get(VARIABLE)
        self._token = (f"{own}/" if own else "") + secrets.token_hex(8)

    def mark(self, member: str) -> dict[str, str]:
        """For the environment of this member."""
        return {VARIABLE: f"{self._token}:{member}"}

    def end(self, member: str | None = None) -> None:
        """End what this member has left, or what all of them have: they are gone."""
        if member is None:
            end_strays([f"{self._token}:"])
        else:
            end_strays(_of_one(f"{self._token}:{member}"))


def _of_one(mark: str) -> list[str]:
    """How the marks of one and of its whole family begin."""
    return [f"{mark}\0", f"{mark}/"]


def end_strays(beginnings: list[str]) -> None:
    """End all processes whose mark begins with one of these, and what they start meanwhile."""
    deadline = time.monotonic() + _GIVE_UP_S
    # One that was killed is still there for a moment.
    while (found := list(_marked(beginnings))) and time.monotonic() < deadline:
        for pid in found:
            _kill(pid, beginnings)
        time.sleep(0.005)


def _marked(beginnings: list[str]) -> Iterator[int]:
    own = os.getuid()
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir("/proc")
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == own and _has(name, beginnings):
                yield int(name)


def _has(pid: str | int, beginnings: list[str]) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = b"\0" + file.read()
    return any(f"\0{VARIABLE}={mark}".encode() in variables for mark in beginnings)


def _kill(pid: int, beginnings: list[str]) -> None:
    """Kill this process, unless its number is that of another by now."""
    with contextlib.suppress(OSError):
        fd = _reference(pid)
        try:
            if not _has(pid, beginnings):
                return
            if fd is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            if fd is not None:
                os.close(fd)


def _reference(pid: int) -> int | None:
    """A descriptor that means this very process; None where the kernel has none (Linux < 5.3)."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


class StrayWatch:
    """Starts a guardian once this worker's env has started what would outlive the worker.

    Args:
        start_guardian: Starts it, with the worker's process id and its mark.
    """

    def __init__(self, start_guardian: Callable[[int, str], None] | None = None) -> None:
        self._start_guardian = start_guardian or _start_guardian
        self._mark = os.environ.get(VARIABLE)
        self._seen, self._pause_s, self._next_look = 0, _TICK_S, 0.0

    def look(self, now: float) -> None:
        """Look, if there may be something to see."""
        if self._mark is None or now < self._next_look or not self._may_have_strays():
            return
        # It may start something at every step: looking takes some milliseconds.
        self._next_look = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        with contextlib.suppress(OSError):
            if any(_is_elsewhere(pid) for pid in _marked(_of_one(self._mark))):
                self._start_guardian(os.getpid(), self._mark)
                self._mark = None

    def _may_have_strays(self) -> bool:
        """Whether this process has children, or had some that have ended since the last look."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        has_seen, self._seen = ended == self._seen, ended
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return True
        return not has_seen


def _is_elsewhere(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getpgid(pid) != os.getpgrp()
    return False


def _start_guardian(worker: int, mark: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    # It leaves at once a child behind that is nobody's: env code may wait for its own children.
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(worker), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        check=False,
    )


def guard(worker: int, mark: str) -> None:
    """Wait until the worker has ended, and end what it has left."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        fd = _reference(worker)
        while _has(worker, [f"{mark}\0"]):
            select.select([] if fd is None else [fd], [], [], _TICK_S if fd is None else None)
    end_strays(_of_one(mark))


if __name__ == "__main__" and os.fork() == 0:
    guard(int(sys.argv[1]), sys.argv[2])
