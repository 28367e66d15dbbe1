"""A child process with its first words on standard input, and its output in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_LOG_TAIL_BYTES = 8_000


class ChildProcess:
    """A process that ends with this one: its standard input stays open until then.

    Args:
        command: What to run.
        first_line: What it reads first; a secret may be in it.
        environment: Its environment variables, all of them.
        log: Where its output goes; None is a file without a name.
        inherit_fds: Descriptors that it has too.
        own_session: Whether it gets a session of its own. Many kernels schedule sessions as
            groups, and a process that yields its core does so within its group: those that share
            memory with us had better be in ours.
    """

    def __init__(
        self,
        command: Sequence[str],
        first_line: bytes,
        environment: Mapping[str, str],
        log: Path | None = None,
        inherit_fds: Sequence[int] = (),
        own_session: bool = True,
    ) -> None:
        self._log = _open_log(log)
        self._oom_kills = oom_kills()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=inherit_fds,
            env=environment,
            # Ctrl-C in the terminal is for the head, which then ends everything in order.
            start_new_session=own_session,
            process_group=None if own_session else 0,
        )
        assert self._process.stdin is not None
        # One that is already gone shows in how_it_ended().
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(first_line)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def log_fd(self) -> int:
        """The descriptor of its log, which it shares: read without moving the position."""
        return self._log.fileno()

    def exit_code(self) -> int | None:
        """As :attr:`subprocess.Popen.returncode`."""
        return self._process.poll()

    def how_it_ended(self) -> str | None:
        """In words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return f"{in_words(code)}: this machine ran out of memory meanwhile"
        return in_words(code)

    def log_tail(self) -> str:
        """The end of what it printed; nothing once its log was forgotten."""
        if self._log.closed:
            return ""
        # It writes through the same file description: read without moving its position.
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _LOG_TAIL_BYTES)
        return os.pread(self._log.fileno(), _LOG_TAIL_BYTES, start).decode(errors="replace")

    def wait(self, deadline: float) -> None:
        """Let it end by itself until then, on the monotonic clock."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def close_input(self) -> None:
        """Let it know that nobody needs it any more; closing twice does no harm."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End it at once, with everything that it started; forget its log. Twice does no harm."""
        if self._log.closed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.close_input()
        self._log.close()


def _open_log(path: Path | None) -> IO[bytes]:
    if path is None:
        # Without a name nothing can be left behind, not even after `kill -9` of the head.
        return tempfile.TemporaryFile()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w+b")


def python_environment() -> dict[str, str]:
    """What a Python that this process starts needs to find this package and to lose no output."""
    # This very package, however this process came by it.
    package_root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # Unbuffered: what an env printed before it crashed must be in the log.
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def in_words(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for lack of memory, of any user."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
