"""A child process that reads its first line from standard input and prints to a bounded log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.bounded_log import BoundedLog

_LOG_TAIL_BYTES = 8_000
_LIVING: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


class ChildProcess:
    """A process that ends with this one: its standard input stays open until then.

    Args:
        command: The command to run.
        first_line: What it reads first; it may contain a secret.
        environment: All of its environment variables.
        log: Where its output goes; None for an unnamed file. The owner must trim :attr:`log`
            regularly.
        inherit_fds: Descriptors that it inherits.
        own_session: Whether it gets a session of its own. Many kernels schedule sessions as
            groups, and a process that yields its core does so within its group: processes that
            share memory with us should stay in ours.
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
        self.log = BoundedLog.open(log)
        """What it printed; closed when it is killed."""
        self._oom_kills = oom_kills()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self.log.fileno(),
                stderr=subprocess.STDOUT,
                pass_fds=inherit_fds,
                env=environment,
                # Ctrl-C in the terminal is for the head, which then ends everything in order.
                start_new_session=own_session,
                process_group=None if own_session else 0,
            )
        except BaseException:
            self.log.close()
            raise
        _LIVING.add(self)
        stdin = self._process.stdin
        assert stdin is not None
        # If it is already gone, how_it_ended() says so.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(first_line)
            stdin.flush()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Like ``subprocess.Popen.returncode``."""
        return self._process.poll()

    def how_it_ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return f"{in_words(code)}: this machine ran out of memory meanwhile"
        return in_words(code)

    def log_tail(self) -> str:
        """The end of what it printed; empty once its log is closed."""
        return self.log.tail(_LOG_TAIL_BYTES).decode(errors="replace")

    def wait(self, deadline: float) -> None:
        """Give it until ``deadline``, on the monotonic clock, to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def close_input(self) -> None:
        """Let it know that it is no longer needed; closing twice does no harm."""
        stdin = self._process.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()

    def kill(self) -> None:
        """End it at once, with everything it started, and close its log. Twice does no harm."""
        if self.log.is_closed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.close_input()
        self.log.close()


def _leave_to_parent() -> None:
    """In a forked child of this process: leave our children to the parent."""
    for child in list(_LIVING):
        child.close_input()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def python_environment() -> dict[str, str]:
    """What a Python started by this process needs to find this package and lose no output."""
    # This very package, however this process found it.
    package_root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # Unbuffered: what an env printed before it crashed must reach the log.
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
    """How many processes, of any user, this machine's kernel has killed for lack of memory."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
