"""Until when a worker has to be done with what it does."""

from __future__ import annotations

import time


class Deadlines:
    """When the current request, or the current step within it, must be over."""

    def __init__(self, step_timeout_s: float, startup_timeout_s: float) -> None:
        self.step_timeout_s, self.startup_timeout_s = step_timeout_s, startup_timeout_s
        self.deadline: float | None = None
        """On the monotonic clock; None while there is nothing to do."""
        self._envs_by: float | None = None

    @property
    def since(self) -> float | None:
        """When something was done last; None while there is nothing to do."""
        deadline = self.deadline
        if deadline is None:
            return None
        is_building = deadline == self._envs_by
        return deadline - (self.startup_timeout_s if is_building else self.step_timeout_s)

    def expect_progress(self) -> None:
        """Something was done; the next thing has as long as a step may take."""
        self.deadline = time.monotonic() + self.step_timeout_s

    def wait_for_host(self) -> None:
        """The host leaves no room for an answer: that is no env that hangs."""
        if self.deadline is not None:
            self.expect_progress()

    def expect_envs(self) -> None:
        """Envs are being built, which may take longer."""
        self.deadline = self._envs_by = time.monotonic() + self.startup_timeout_s
