"""Deadlines for what a worker is doing."""

from __future__ import annotations

import time


class Deadlines:
    """When the current request, or the current step within it, must be done."""

    def __init__(self, step_timeout_s: float, startup_timeout_s: float) -> None:
        self.step_timeout_s, self.startup_timeout_s = step_timeout_s, startup_timeout_s
        self.deadline: float | None = None
        """On the monotonic clock; None while there is nothing to do."""
        self._envs_by: float | None = None

    @property
    def since(self) -> float | None:
        """When the last progress was made; None while there is nothing to do."""
        deadline = self.deadline
        if deadline is None:
            return None
        is_building = deadline == self._envs_by
        return deadline - (self.startup_timeout_s if is_building else self.step_timeout_s)

    def expect_progress(self) -> None:
        """Note progress; what comes next may take as long as a step."""
        self.deadline = time.monotonic() + self.step_timeout_s

    def wait_for_host(self) -> None:
        """Move the deadline while the host leaves no room for an answer: no env hangs then."""
        if self.deadline is not None:
            self.expect_progress()

    def expect_envs(self) -> None:
        """Allow more time for building envs."""
        self.deadline = self._envs_by = time.monotonic() + self.startup_timeout_s
