"""Waits that end, and commands and daemons whose failures say why."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TAIL_BYTES = 2000


class EngineError(RuntimeError):
    """An engine did not do what it should; the message has its own words."""


def wait_until(
    condition: Callable[[], bool], what: str, deadline_s: float, logs: Sequence[Path] = ()
) -> None:
    """Return once ``condition()`` holds; past the deadline raise, with the ends of ``logs``."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"not within {deadline_s} s: {what}{tails(logs)}")
        time.sleep(0.02)


def tails(logs: Sequence[Path]) -> str:
    """The ends of these files, to be put into an error."""
    return "".join(f"\n--- {log}\n{_tail(log)}" for log in logs)


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError as error:
        return str(error)


def accepts(address: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    cwd: Path | str | None = None,
) -> str:
    """What a command prints; if it fails or takes too long, an error with all that it said."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, env=env, input=input, cwd=cwd
        )
    except subprocess.TimeoutExpired as late:
        raise EngineError(
            f"{' '.join(argv)}: no end within {timeout_s} s: {late.stderr!r}"
        ) from late
    if done.returncode:
        raise EngineError(
            f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


class Daemon:
    """A process in the foreground of its own session, whose output goes to a log."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self._name = " ".join(argv)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )

    def wait_until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """As `wait_until`, but raises at once if the daemon ends."""

        def ended_or_ready() -> bool:
            if self.process.poll() is not None:
                raise EngineError(
                    f"{self._name}: exit code {self.process.returncode}{tails([self.log])}"
                )
            return condition()

        wait_until(ended_or_ready, what, deadline_s, [self.log])

    def kill(self) -> None:
        """End it with -9, if it still runs."""
        self.process.kill()
        self.process.wait()


@contextmanager
def locked(path: Path, deadline_s: float) -> Iterator[None]:
    """Hold the lock of this name against all other processes."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def taken() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with path.open("a") as file:
        wait_until(taken, f"the lock {path}", deadline_s)
        yield
