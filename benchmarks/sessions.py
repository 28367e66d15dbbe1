"""Systems that take turns: each in processes of its own, which are stopped while others run.

A machine's speed drifts within seconds. All systems of a comparison are there at once, and each is
measured for a short while, again and again: neighbours in time have seen the same machine.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, Self

from fresh_process import THREAD_LIMITS, MeasurementError
from leftovers import descendants


class Session(Protocol):
    """A system that is there, and stopped."""

    def measure(self, timeout_s: float) -> Any:
        """Let it run and measure once; MeasurementError if it cannot."""

    def close(self) -> None:
        """End it, with all its processes."""


class FunctionSession:
    """A generator function in a fresh Python; each of its results is one measurement."""

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any) -> None:
        os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, function, arguments))
        self._process.start()
        there.close()

    def measure(self, timeout_s: float) -> Any:
        """The next result; the first takes the time to start."""
        with _running(self._process.pid):
            self._here.send(None)
            wait([self._here, self._process.sentinel], timeout=timeout_s)
            if not self._here.poll():
                raise MeasurementError(f"no result within {timeout_s:.0f} s, or its process ended")
            result, failure = self._here.recv()
        if failure:
            raise MeasurementError(failure)
        return result

    def close(self) -> None:
        """End it, with all its processes."""
        _end(self._process.pid)
        self._process.join()


def _serve(connection: Connection, function: Callable[..., Iterator[Any]], args: tuple) -> None:
    os.setsid()
    set_start_method(None, force=True)  # Users start from the default; this process was spawned.
    results = function(*args)
    while True:
        connection.recv()
        try:
            connection.send((next(results), None))
        except Exception as error:
            connection.send((None, f"{type(error).__name__}: {error}"))
            raise


class CommandSession:
    """A command that answers each line on stdin with one line of JSON."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def measure(self, timeout_s: float) -> Any:
        """The next result; the first takes the time to start."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with _running(process.pid):
            try:
                print(file=process.stdin, flush=True)
            except BrokenPipeError:
                raise MeasurementError("it has ended") from None
            if not select.select([process.stdout], [], [], timeout_s)[0]:
                raise MeasurementError(f"no result within {timeout_s:.0f} s")
            if not (line := process.stdout.readline()):
                raise MeasurementError(f"it ended with status {process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it, with all its processes."""
        _end(self._process.pid)
        self._process.wait()


class Turns:
    """Systems that are measured one after the other, round after round."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[str, Session] = {}
        self._missing: dict[str, str] = {}

    def add(self, name: str, start: Callable[[], Session] | str) -> None:
        """Another system, which sets itself up now, or why it is not there."""
        if isinstance(start, str):
            self._missing[name] = start
        else:
            self._sessions[name] = start()
            self._measure(name)

    def round(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Each system's name, result, and why there is none."""
        for name in [*self._sessions, *self._missing]:
            result = self._measure(name) if name in self._sessions else {}
            yield name, result, self._missing.get(name, "")

    def _measure(self, name: str) -> dict[str, Any]:
        try:
            return dict(self._sessions[name].measure(self._timeout_s))
        except MeasurementError as error:
            print(f"{name}: {error}", file=sys.stderr)
            self._sessions.pop(name).close()
            self._missing[name] = "failed"
            return {}

    def __enter__(self) -> Self:
        # Whoever is stopped would stay so for ever.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close()


@contextmanager
def _running(pid: int | None) -> Iterator[None]:
    """Only within this block do a process and its descendants run."""
    assert pid is not None
    _signal(pid, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(pid, signal.SIGSTOP)


def _signal(pid: int, number: signal.Signals) -> None:
    for one in {pid, *descendants(pid)}:
        with suppress(ProcessLookupError):
            os.kill(one, number)


def _end(pid: int | None) -> None:
    assert pid is not None
    _signal(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
