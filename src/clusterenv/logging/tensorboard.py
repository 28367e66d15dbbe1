"""Event files for TensorBoard. The only file that imports tensorboard; it needs no PyTorch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError as error:
    raise ImportError(
        "TensorBoardLog needs TensorBoard: pip install 'clusterenv[tensorboard]'"
    ) from error

_FLUSH_S = 10


class TensorBoardLog:
    """Writes an event file, with the same tags as CleanRL.

    A run that goes on after some steps gets a second event file in the same folder, which says
    that what the first one has of later steps is void.

    Args:
        folder: Where the event file goes; it is made if it does not exist.

    Example:
        >>> log = TensorBoardLog("runs/ppo")  # then: tensorboard --logdir runs
        >>> with Progress(1_000_000, logs=[log]) as progress:  # doctest: +SKIP
        ...     progress.collected(rollout, newest=envs.version)
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: Any = None

    def open(self, hyperparameters: Mapping[str, Any], first_step: int) -> None:
        """Make the event file; hyperparameters become a table among its texts."""
        self._writer = EventFileWriter(str(self._folder), flush_secs=_FLUSH_S)
        if first_step > 0:
            self._void_from(first_step + 1)
        if hyperparameters:
            rows = "".join(f"\n|{name}|{value}|" for name, value in hyperparameters.items())
            text = text_pb("hyperparameters/text_summary", f"|param|value|\n|-|-|{rows}")
            self._add(first_step, summary=text)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of these curves."""
        points = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        self._add(step, summary=Summary(value=points))

    def close(self, *, failed: bool) -> None:
        """Write what is left; an event file does not say how a run ended."""
        if self._writer is not None:
            self._writer.close()

    def _void_from(self, step: int) -> None:
        # Twice: one of TensorBoard's readers takes the first for the start of the whole run.
        for _ in range(2):
            self._add(step, session_log=SessionLog(status=SessionLog.START))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(Event(step=step, wall_time=time.time(), **content))
