"""Which call is pending, with Gymnasium's exceptions for calls out of order."""

from __future__ import annotations

from enum import Enum

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded


class Call(Enum):
    """What may be pending; the values are Gymnasium's own words where it has them."""

    NOTHING = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    ROLLOUT = "rollout"
    STREAM = "stream"
    PARTIAL_BATCHES = "recv"


class CallState:
    """What the vector env waits for, and what it has been used for since the last reset."""

    def __init__(self) -> None:
        self.pending = Call.NOTHING
        self.has_reset = False
        self.has_stepped = False
        self.resets_all = False
        """Whether the pending reset is one of all slots."""

    def assert_nothing_pending(self, method: str, full_stop: str = ".") -> None:
        """AlreadyPendingCallError if something is."""
        if self.pending is not Call.NOTHING:
            raise AlreadyPendingCallError(
                f"Calling `{method}` while waiting for a pending call to `{self.pending.value}` "
                f"to complete{full_stop}",
                self.pending.value,
            )

    def assert_pending(self, call: Call) -> None:
        """NoAsyncCallError if ``call`` was not started."""
        if self.pending is not call:
            verb = call.value
            raise NoAsyncCallError(
                f"Calling `{verb}_wait` without any prior call to `{verb}_async`.", verb
            )

    def assert_has_reset(self, method: str) -> None:
        """ResetNeeded if there is no episode to go on with."""
        if not self.has_reset:
            raise ResetNeeded(f"Cannot call `{method}` before calling `reset`")

    def assert_can_collect(self, method: str) -> None:
        """ResetNeeded after single steps, which may have left episodes that are over."""
        if self.has_stepped:
            raise ResetNeeded(f"Cannot call `{method}` after `step` without `reset` in between")
