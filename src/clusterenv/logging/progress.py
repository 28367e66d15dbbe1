"""Progress: what a run has done so far, on one line and in logs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from clusterenv.logging.base import Log
from clusterenv.logging.lines import Line, line_for_this_place
from clusterenv.logging.scalars import (
    Episode,
    ends_of,
    episode_scalars,
    episodes_of,
    hyperparameters_of,
    lag_of,
    ledger_scalars,
    loss_scalars,
    spread,
    steps_of,
    version_scalars,
)
from clusterenv.rollout import Fragment
from clusterenv.sync.ledger import Ledger

_RECENT_EPISODES = 100


class CurvePoint(NamedTuple):
    """One point of the learning curve."""

    step: int
    """Env steps so far."""
    seconds: float
    """Since the run began."""
    mean_return: float
    """Of the last 100 episodes."""


class Progress:
    """Counts steps and episodes, shows them on one line, and writes them to logs.

    In a terminal the line is a bar that stays in its place; in a notebook it changes below its
    cell; in a file or a pipe a line is printed every ten seconds.

    Args:
        total_steps: How many env steps the run is going to do.
        title: What the bar begins with.
        logs: Where the numbers go; opened on entering, closed on leaving.
        hyperparameters: A dataclass or a mapping, which each log keeps.
        first_step: How many steps an earlier part of this run has done already.
        clock: Tells the seconds.

    Attributes:
        step: The env steps so far, those of an earlier part included.
        curve: A :class:`CurvePoint` for each call that brought steps, from the first end of an
            episode on.

    Example:
        >>> with Progress(1_000_000, "PPO", logs=[TensorBoardLog("runs/ppo")]) as progress:
        ...     while progress.step < 1_000_000:  # doctest: +SKIP
        ...         rollout = envs.rollout(policy, num_steps=128)
        ...         progress.collected(rollout, newest=envs.version)
        ...         progress.learned(value_loss=learn(policy, rollout))
        ...         progress.synced(envs.ledger)
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "",
        *,
        logs: Sequence[Log] = (),
        hyperparameters: Any = None,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = self._first_step = first_step
        self.curve: list[CurvePoint] = []
        self._total_steps, self._title = total_steps, title
        self._logs = tuple(logs)
        self._hyperparameters = hyperparameters_of(hyperparameters)
        self._recent: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._clock, self._started_s = clock, clock()
        self._line: Line | None = None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for log in self._logs:
                opening.push(partial(_close, log))
                log.open(self._hyperparameters, self._first_step)
            line = line_for_this_place(self._title, self._total_steps, self._clock)
            opening.callback(line.close)
            self._line, self._opened = line, opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._line = None
        self._opened.__exit__(kind, error, traceback)

    @property
    def seconds(self) -> float:
        """Since this object was made."""
        return self._clock() - self._started_s

    @property
    def mean_return(self) -> float:
        """Of the last 100 episodes; NaN before the first has ended."""
        return float(np.mean(self._recent)) if self._recent else float("nan")

    def has_reached(self, target_return: float) -> bool:
        """Whether the last 100 episodes have this mean return."""
        return len(self._recent) == _RECENT_EPISODES and self.mean_return >= target_return

    def collected(self, fragment: Fragment, newest: int) -> None:
        """A fragment or rollout has come, while ``newest`` was the newest version.

        Its env steps are counted row by row, so each of its episodes ended at a step of its own.
        """
        episodes = list(zip(ends_of(fragment), episodes_of(fragment), strict=True))
        self._count(steps_of(fragment), episodes, newest, lag_of(fragment, newest))

    def stepped(
        self, steps: int, episodes: Iterable[Episode], version: int = 0, lag: int = 0
    ) -> None:
        """So many env steps were done, and these episodes (return, length) have ended.

        Where is not said: they are spread evenly over these steps.
        """
        ended = list(episodes)
        self._count(steps, list(zip(spread(len(ended), steps), ended, strict=True)), version, lag)

    def _count(
        self, steps: int, episodes: Sequence[tuple[int, Episode]], version: int, lag: int
    ) -> None:
        before = self.step
        self.step += steps
        # A step of its own for each: TensorBoard shows one number per step.
        for place, episode in episodes:
            self._recent.append(float(episode[0]))
            self._log(before + place, episode_scalars(episode))
        speed = (self.step - self._first_step) / max(self.seconds, 1e-9)
        numbers = {"charts/SPS": speed, **version_scalars(version, lag)}
        if self._recent:
            numbers["charts/mean_return"] = self.mean_return
            self.curve.append(CurvePoint(self.step, self.seconds, self.mean_return))
        self.scalars(numbers)
        self._open_line().show(
            self.step,
            f"{self.step:>10,} steps  {speed:>7,.0f}/s  return {self.mean_return:8.1f}  "
            f"version {version} lag {lag}",
        )

    def learned(self, **values: float) -> None:
        """The learner did an update: ``value_loss=0.5`` becomes ``losses/value_loss``."""
        self.scalars(loss_scalars(values))

    def synced(self, ledger: Ledger) -> None:
        """Log what the ledger says by now: ``sync/pulls``, ``cluster/losses`` and more."""
        self.scalars(ledger_scalars(ledger))

    def scalars(self, values: Mapping[str, float]) -> None:
        """Log numbers of your own under these names."""
        self._log(self.step, values)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._open_line()
        # Arrays and tensors of one number are welcome; logs get plain numbers.
        numbers = {name: float(value) for name, value in values.items()}
        for log in self._logs:
            log.scalars(step, numbers)

    def _open_line(self) -> Line:
        if self._line is None:
            raise RuntimeError(
                "Progress takes numbers while it is open only: `with Progress(…) as progress:`"
            )
        return self._line


def _close(log: Log, kind: type[BaseException] | None, *_: object) -> None:
    log.close(failed=kind is not None)
