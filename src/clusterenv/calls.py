"""Which call is pending, with Gymnasium's exceptions for calls out of order, and their ends."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import gymnasium
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)

from clusterenv.head.collecting import Collecting
from clusterenv.head.session import Session

_CLOSE_GRACE_S = 5.0


class Call(Enum):
    """What may be pending; the values are Gymnasium's own words where it has them."""

    NOTHING = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    ROLLOUT = "rollout"
    STREAM = "stream"
    PARTIAL_BATCHES = "recv"


class Calls:
    """What the vector env waits for, and what it has been used for since the last reset."""

    def __init__(self, session: Session, collecting: Collecting) -> None:
        self._session, self._collecting = session, collecting
        self._owner_pid = os.getpid()
        self.pending = Call.NOTHING
        self.has_reset = False
        self.has_stepped = False
        self.resets_all = False
        """Whether the pending reset is one of all slots."""

    @property
    def may_step_at_once(self) -> bool:
        """Whether nothing is in the way of a step."""
        return self.pending is Call.NOTHING and self.has_reset and os.getpid() == self._owner_pid

    # Checks.

    def assert_is_running(self, closed: bool) -> None:
        """ClosedEnvironmentError after ``close()``, and in a forked child."""
        if closed:
            raise ClosedEnvironmentError(
                "Trying to operate on `ClusterEnv`, after a call to `close()`."
            )
        if not self.is_owner:
            raise ClosedEnvironmentError(
                f"this ClusterEnv belongs to process {self._owner_pid}: a forked child cannot use "
                "it, make one of its own"
            )

    @property
    def is_owner(self) -> bool:
        """Whether this is the process that made the run."""
        return os.getpid() == self._owner_pid

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

    def assert_in_partial_batches(self, method: str) -> None:
        """ResetNeeded if no partial batches were begun."""
        if self.pending is not Call.PARTIAL_BATCHES:
            raise ResetNeeded(f"Cannot call `{method}` before calling `async_reset`")

    # Ends.

    def wait(self, call: Call, timeout: float | None) -> None:
        """Wait for what is pending; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self.assert_pending(call)
        self.pending = Call.NOTHING
        with self.finishing(call):
            done = self._session.wait_until_idle(timeout)
        if not done:
            self.abandon()
            raise multiprocessing.TimeoutError(
                f"The call to `{call.value}_wait` has timed out after {timeout} second(s)."
            )

    @contextmanager
    def finishing(self, call: Call) -> Iterator[None]:
        """If what is done meanwhile fails, forget the call."""
        try:
            yield
        except BaseException:
            self.forget(call)
            raise

    def forget(self, call: Call) -> None:
        """The call has failed: nobody knows where the envs are, unless it was no step."""
        self.has_reset = self.has_reset and call is Call.CALL
        if call is Call.PARTIAL_BATCHES:
            # Nobody knows which slots would still come: start anew with async_reset.
            self.pending = Call.NOTHING
        self.abandon()

    def abandon(self) -> None:
        """Take no notice of what was asked so far."""
        self._session.abandon()
        self._collecting.abandon()

    def leave_partial_batches(self) -> None:
        """Wait for what is under way, and take no notice of it."""
        if self.pending is Call.PARTIAL_BATCHES:
            self._session.wait_until_idle(None)
            self.abandon()
            self.pending = Call.NOTHING

    def close(self, timeout: float | None, terminate: bool) -> None:
        """End the run; a pending call and the workers may take ``timeout``."""
        if self.pending in (Call.RESET, Call.STEP, Call.CALL):
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{self.pending.value}` "
                "to complete."
            )
            terminate = terminate or not self._finish(timeout)
        grace_s = _CLOSE_GRACE_S if timeout is None else timeout
        self._session.close(0.0 if terminate else grace_s)

    def _finish(self, timeout: float | None) -> bool:
        try:
            return self._session.wait_until_idle(timeout)
        except Exception as error:
            gymnasium.logger.warn(f"The pending call failed: {error!r}")
            return True
