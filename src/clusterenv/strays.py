"""Ends what envs have started along with their worker, even daemons and processes in new sessions.

Each worker has a mark among its environment variables, which everything it starts inherits. The
host ends all processes with the mark of a worker that is gone. A host that is killed cannot; so a
worker whose env has started something outside the worker's process group starts a *guardian*: a
small process that waits for the worker's end, and then ends what is left.

It cannot find processes with another environment (``env -i``, ``sudo``), of another user, or that
have overwritten their environment, as setproctitle does.
"""

# Guardians run this file as a script: it imports only the standard library.
from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

VARIABLE = "CLUSTERENV_STARTED_BY"
"""Start without this variable what should outlive the run."""
_GIVE_UP_S = 2.0
_TICK_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Family:
    """The marks of one host's workers, or of the hosts that this process starts."""

    def __init__(self) -> None:
        # Whoever ends this process's own strays then ends theirs too.
        own = os.environ.get(VARIABLE)
        self._token = (f"{own}/" if own else "") + secrets.token_hex(8)

    def mark(self, member: str) -> dict[str, str]:
        """The environment variable with this member's mark."""
        return {VARIABLE: f"{self._token}:{member}"}

    def end(self, member: str | None = None) -> None:
        """End what this member, or all members, have left behind; they are gone."""
        if member is None:
            end_strays([f"{self._token}:"])
        else:
            end_strays(_of_one(f"{self._token}:{member}"))


def _of_one(mark: str) -> list[str]:
    """How the marks of one member and of its whole family begin."""
    return [f"{mark}\0", f"{mark}/"]


def end_strays(beginnings: list[str]) -> None:
    """End all processes whose mark begins with one of these, and what they start meanwhile."""
    deadline = time.monotonic() + _GIVE_UP_S
    # A killed process is still there for a moment.
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
    """Kill this process, unless its number belongs to another one by now."""
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
    """A descriptor of this very process; None if the kernel has none (Linux < 5.3)."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


class StrayWatch:
    """Starts a guardian once this worker's env has started something that would outlive it.

    Args:
        start_guardian: Starts it, given the worker's process id and its mark.
    """

    def __init__(self, start_guardian: Callable[[int, str], None] | None = None) -> None:
        self._start_guardian = start_guardian or _start_guardian
        self._mark = os.environ.get(VARIABLE)
        self._seen, self._pause_s, self._next_look = 0, _TICK_S, 0.0

    def look(self, now: float) -> None:
        """Look for strays, if there may be any."""
        if self._mark is None or now < self._next_look or not self._may_have_strays():
            return
        # The env may start something at every step, and looking takes some milliseconds.
        self._next_look = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        with contextlib.suppress(OSError):
            if any(_is_elsewhere(pid) for pid in _marked(_of_one(self._mark))):
                self._start_guardian(os.getpid(), self._mark)
                self._mark = None

    def _may_have_strays(self) -> bool:
        """Whether this process has children, or had some that have ended since the last look."""
        import resource  # not on every platform: see platforms.py

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
    # It forks and ends at once, so that it is not a child of ours, which env code may wait for.
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
