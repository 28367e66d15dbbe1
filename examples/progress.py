"""What the examples show of a run: a live line in the terminal, and TensorBoard files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from torch.utils.tensorboard import SummaryWriter

from clusterenv import Fragment, Ledger
from clusterenv.sync.exports import write_scalars

_RECENT_EPISODES = 100
_LOG_EVERY_S = 10.0
_LINE = (
    "{steps:>10,} steps  {speed:>7,.0f}/s  return {mean_return:8.1f}  version {version} lag {lag}"
)


class Point(NamedTuple):
    """One point of the learning curve."""

    step: int
    seconds: float
    mean_return: float
    """Of the last 100 episodes."""


class Progress:
    """Counts steps and episodes; CleanRL's tags in TensorBoard, a live line in the terminal."""

    def __init__(self, title: str, out: Path, total_steps: int, args: Any) -> None:
        self.step = 0
        self.curve: list[Point] = []
        self._recent: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._started = self._logged = time.monotonic()
        self._writer = SummaryWriter(str(out))
        rows = "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
        self._writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
        self._console = Console()
        columns = (TextColumn(title), BarColumn(), TextColumn("{task.fields[line]}"))
        self._bar = Bar(*columns, TimeElapsedColumn(), console=self._console)
        self._task = self._bar.add_task(title, total=total_steps, line="")

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
        self._writer.close()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started

    @property
    def mean_return(self) -> float:
        """Of the last 100 episodes; NaN before the first has ended."""
        return float(np.mean(self._recent)) if self._recent else float("nan")

    def has_reached(self, target_return: float) -> bool:
        """Whether the last 100 episodes have this mean return."""
        return len(self._recent) == _RECENT_EPISODES and self.mean_return >= target_return

    def collected(self, fragment: Fragment, newest: int) -> None:
        """A fragment or rollout has come, while ``newest`` was the newest version."""
        episodes = zip(fragment.episodes.returns, fragment.episodes.lengths, strict=True)
        self.stepped(fragment.rewards.size, episodes, newest, newest - int(fragment.versions.min()))

    def stepped(
        self, steps: int, episodes: Iterable[tuple[float, int]], version: int = 0, lag: int = 0
    ) -> None:
        """So many env steps were done, and these episodes (return, length) have ended."""
        self.step += steps
        for episodic_return, length in episodes:
            self._recent.append(float(episodic_return))
            self._add("charts/episodic_return", episodic_return)
            self._add("charts/episodic_length", length)
        speed = self.step / self.seconds
        self._add("charts/SPS", speed)
        self._add("charts/version", version)
        self._add("charts/version_lag", lag)
        if self._recent:
            self.curve.append(Point(self.step, self.seconds, self.mean_return))
        self._show(
            _LINE.format(
                steps=self.step,
                speed=speed,
                mean_return=self.mean_return,
                version=version,
                lag=lag,
            )
        )

    def learned(self, **scalars: float) -> None:
        """The learner did an update: ``value_loss=0.5`` becomes the tag ``losses/value_loss``."""
        for name, value in scalars.items():
            self._add(
                "charts/learning_rate" if name == "learning_rate" else f"losses/{name}", value
            )

    def synced(self, ledger: Ledger) -> None:
        """What the ledger says by now: ``sync/pulls`` and more."""
        write_scalars(ledger, self._writer, self.step)

    def _add(self, tag: str, value: float) -> None:
        self._writer.add_scalar(tag, value, self.step)

    def _show(self, line: str) -> None:
        self._bar.update(self._task, completed=self.step, line=line)
        # Into a file or a pipe goes a plain line now and then instead.
        if not self._console.is_terminal and time.monotonic() - self._logged > _LOG_EVERY_S:
            self._logged = time.monotonic()
            print(line, flush=True)
