"""What a log is: something that keeps named numbers by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Log(Protocol):
    """Keeps named numbers by step.

    Making one opens nothing. :class:`clusterenv.logging.Progress` opens its logs when it is
    entered, and closes them when it is left.
    """

    def open(self, hyperparameters: Mapping[str, Any], first_step: int) -> None:
        """Start a run, or go on with one that has done ``first_step`` steps already."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Keep these numbers. The same name may come several times with the same step."""

    def close(self, *, failed: bool) -> None:
        """Write what is left and end the run; also called where ``open`` raised an exception.

        Args:
            failed: Whether an exception ended the run.
        """
