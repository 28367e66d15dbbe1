"""Two checkouts of this package side by side, each used by a child process of its own.

The child is a script of this folder, the same for both sides; ``PYTHONPATH`` says whose
``clusterenv`` it imports. It answers each line of JSON on its standard input with another one.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from fresh_process import THREAD_LIMITS, MeasurementError
from leftovers import cpu_seconds, descendants

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
BEFORE = "1b1e1ce"
"""The commit before workers got a host."""


def has_commit(commit: str) -> bool:
    """Whether this is a clone that has the commit; a shallow one may not."""
    try:
        _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A temporary worktree of ``commit``, which goes at the end, also after Ctrl-C or SIGTERM."""
    if not has_commit(commit):
        sys.exit(f"commit {commit} is not in this clone: try git fetch --unshallow")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory(prefix="clusterenv-") as folder:
        worktree = Path(folder) / "before"
        try:
            _git("worktree", "add", "--quiet", "--detach", str(worktree), commit)
            yield worktree
        finally:
            with _uninterrupted(), suppress(subprocess.CalledProcessError):
                _git("worktree", "remove", "--force", str(worktree))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that would end this process, and its children in here, wait until the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def name_of(checkout: Path) -> str:
    """The commit that is checked out there, and whether its package was changed since."""
    try:
        changed = _git("status", "--porcelain", "--", "src", folder=checkout)
        commit = _git("rev-parse", "--short=12", "HEAD", folder=checkout)
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return f"{commit} with changes" if changed else commit


def _git(*arguments: str, folder: Path = ROOT) -> str:
    command = ("git", "-C", str(folder), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Child:
    """A script that uses the package of one checkout."""

    def __init__(self, script: str, checkout: Path) -> None:
        self._script, self._checkout = script, checkout
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(BENCHMARKS / self._script)],
            env=_environment(self._checkout),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for this process, which then ends its children.
            start_new_session=True,
        )

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer; MeasurementError if there is none."""
        self.send(question)
        return self.receive(timeout_s)

    def send(self, question: dict[str, Any]) -> None:
        """Ask; :meth:`receive` has the answer. If the child has ended, there is a new one."""
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The answer to the last question; MeasurementError if there is none."""
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], timeout_s)[0]:
            # It would disturb what is measured next, and its answer would come as another's.
            self.close(timeout_s=0.0)
            raise MeasurementError(f"no answer within {timeout_s:.0f} s")
        if not (line := answers.readline()):
            raise MeasurementError(f"it ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasurementError(answer["error"])
        return answer

    def cpu_seconds(self) -> float:
        """CPU time so far of the child and of all that it has started."""
        total = 0.0
        for pid in {self._process.pid, *descendants(self._process.pid)}:
            with suppress(OSError):
                total += cpu_seconds(pid)
        return total

    def close(self, timeout_s: float = 20.0) -> None:
        """Let it end by itself; what is still there after ``timeout_s`` is killed."""
        everyone = {self._process.pid, *descendants(self._process.pid)}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except BaseException as error:
            for pid in everyone | descendants(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(checkout: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "")
    path = [str(checkout / "src"), str(BENCHMARKS), *filter(None, [inherited])]
    own = {**dict.fromkeys(THREAD_LIMITS, "1"), "PYTHONPATH": os.pathsep.join(path)}
    # A fresh worktree has no compiled files yet: without them each of its starts would be slow.
    kept = {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **own}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """What a child does: it answers questions until there are no more.

    What others print goes to standard error.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            try:
                answered = answer(json.loads(line))
            except Exception as error:
                traceback.print_exc()
                answered = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answered), file=answers, flush=True)
