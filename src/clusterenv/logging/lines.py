"""Where the progress line appears: in a terminal, in a notebook, or in a file or pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

Clock = Callable[[], float]

_PLAIN_EVERY_S = 10.0
_NOTEBOOK_EVERY_S = 0.2
_WIDTH = 30


class Line(Protocol):
    """One line about a run, which changes while the run goes on."""

    def show(self, step: int, text: str) -> None:
        """So many steps are done, and this is said of them."""

    def close(self) -> None:
        """The run is over."""


def line_for_this_place(title: str, total_steps: int, clock: Clock = time.monotonic) -> Line:
    """What fits where standard output goes: a notebook's cell, a terminal, a file or pipe."""
    if is_in_notebook():
        display = import_module("IPython.display").display
        return NotebookLine(title, total_steps, display, clock)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        try:
            from clusterenv.logging.bar import Bar
        except ImportError as error:
            print(f"{error}; without it, a line appears now and then", flush=True)
        else:
            return Bar(title, total_steps)
    return PlainLines(title, clock)


def is_in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    # Who runs in a notebook has IPython imported; nobody else has to import it to find out.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class PlainLines:
    """Prints a line now and then: for files and pipes, such as the output of a batch job."""

    def __init__(self, title: str, clock: Clock = time.monotonic) -> None:
        self._title, self._clock, self._shown_s = title, clock, clock()
        self._newest = self._shown = ""

    def show(self, step: int, text: str) -> None:
        """Print it, if the last line was ten seconds ago."""
        self._newest = f"{self._title} {text}" if self._title else text
        if self._clock() - self._shown_s > _PLAIN_EVERY_S:
            self._shown_s = self._clock()
            self._print()

    def close(self) -> None:
        """Print the last state."""
        if self._shown != self._newest:
            self._print()

    def _print(self) -> None:
        self._shown = self._newest
        print(self._newest, flush=True)


class NotebookLine:
    """A line below a notebook's cell that changes in place; it needs no widgets.

    Args:
        title: What the line begins with.
        total_steps: What the bar's full length stands for.
        display: ``IPython.display.display``.
        clock: Tells the seconds between two changes.
    """

    def __init__(
        self, title: str, total_steps: int, display: Callable[..., Any], clock: Clock
    ) -> None:
        self._title, self._total_steps = title, total_steps
        self._clock, self._started_s, self._shown_s = clock, clock(), clock()
        self._shown = self._newest = self._drawn(0, "")
        self._handle = display(_as_text(self._newest), raw=True, display_id=True)

    def show(self, step: int, text: str) -> None:
        """Change the line, if the last change was not just now."""
        self._newest = self._drawn(step, text)
        if self._clock() - self._shown_s >= _NOTEBOOK_EVERY_S:
            self._shown_s = self._clock()
            self._update()

    def close(self) -> None:
        """Show the last state."""
        if self._shown != self._newest:
            self._update()

    def _update(self) -> None:
        self._shown = self._newest
        self._handle.update(_as_text(self._newest), raw=True)

    def _drawn(self, step: int, text: str) -> str:
        minutes, seconds = divmod(int(self._clock() - self._started_s), 60)
        bar = drawn_bar(step, self._total_steps)
        return f"{self._title} {bar} {text.strip()} {minutes // 60}:{minutes % 60:02}:{seconds:02}"


def drawn_bar(step: int, total_steps: int) -> str:
    """``━━━━━━━━━━───────────────────`` for a third."""
    done = min(_WIDTH, _WIDTH * step // max(1, total_steps))
    return "━" * done + "─" * (_WIDTH - done)


def _as_text(line: str) -> dict[str, str]:
    return {"text/plain": line}
