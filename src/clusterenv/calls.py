"""Tracks which call is pending, with Gymnasium's exceptions for calls out of order."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

import gymnasium
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)

from clusterenv.head.collecting import Collecting
from clusterenv.head.session import Session
from clusterenv.stopwatch import Stopwatch

_CLOSE_GRACE_S = 5.0


class _Forks:
    """How often the process was forked on the way to this one: cheaper to get than its id."""

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forks.add)


class PendingCall(Enum):
    """What may be pending; the values are Gymnasium's own words where it has them."""

    NOTHING = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    ROLLOUT = "rollout"
    STREAM = "stream"
    PARTIAL_BATCHES = "recv"


_WAYS_OUT = {
    PendingCall.STREAM: "leave the loop over `stream` first, or close what it returned",
    PendingCall.PARTIAL_BATCHES: "go on with `recv` and `send`, or call `reset` first",
}
"""What to do about calls that Gymnasium does not have."""


class Calls:
    """What the vector env is waiting for, and its use since the last reset."""

    def __init__(self, session: Session, collecting: Collecting) -> None:
        self._session, self.collecting = session, collecting
        self._owner_pid, self._forks = os.getpid(), _Forks.count
        self.turn = threading.RLock()
        """Held by the thread that is in a call."""
        self.pending = PendingCall.NOTHING
        self.has_reset = False
        self._unfinished = ""
        """The call that did not finish, if the envs must be reset because of it."""
        self.has_stepped = False
        self.resets_all = False
        """Whether the pending reset is for all slots."""

    @property
    def may_step_at_once(self) -> bool:
        """Whether nothing stands in the way of a step."""
        return (
            self.pending is PendingCall.NOTHING and self.has_reset and self._forks == _Forks.count
        )

    # Checks.

    def refuse_thread(self, method: str) -> NoReturn:
        """AlreadyPendingCallError, because another thread is in a call."""
        # In a forked child, the lock may be held by a thread that the child lacks.
        self.assert_is_running()
        raise AlreadyPendingCallError(
            f"Calling `{method}` while another thread is in a call to the same ClusterEnv: only "
            "`publish` may be called then. Use a lock, or a ClusterEnv for each thread.",
            method,
        )

    def assert_is_running(self) -> None:
        """ClosedEnvironmentError after ``close()``, and in a forked child."""
        if self._session.is_closed:
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
        """Whether this is the process that created the run."""
        return self._forks == _Forks.count

    def assert_may_begin(self, method: str) -> None:
        """Raise if the run is over, or something is pending."""
        self.assert_is_running()
        self.assert_nothing_pending(method)

    def assert_nothing_pending(self, method: str, full_stop: str = ".") -> None:
        """AlreadyPendingCallError if something is pending."""
        if self.pending is not PendingCall.NOTHING:
            way_out = _WAYS_OUT.get(self.pending)
            end = full_stop if way_out is None else f": {way_out}."
            raise AlreadyPendingCallError(
                f"Calling `{method}` while waiting for a pending call to `{self.pending.value}` "
                f"to complete{end}",
                self.pending.value,
            )

    def assert_pending(self, call: PendingCall) -> None:
        """NoAsyncCallError if ``call`` was not started."""
        if self.pending is not call:
            verb = call.value
            raise NoAsyncCallError(
                f"Calling `{verb}_wait` without any prior call to `{verb}_async`.", verb
            )

    def assert_has_reset(self, method: str) -> None:
        """ResetNeeded if there is no episode to continue."""
        if not self.has_reset:
            why = f": the last `{self._unfinished}` did not finish" if self._unfinished else ""
            raise ResetNeeded(f"Cannot call `{method}` before calling `reset`{why}")

    def assert_can_collect(self, method: str) -> None:
        """ResetNeeded after single steps, which may have left finished episodes."""
        if self.has_stepped:
            raise ResetNeeded(
                f"Cannot call `{method}` after `step` without `reset` in between: steps may have "
                "left episodes that are over"
            )

    def assert_in_partial_batches(self, method: str) -> None:
        """ResetNeeded if partial batches were not begun, ClosedEnvironmentError after the end."""
        is_open = self._forks == _Forks.count and not self._session.is_closed
        if self.pending is not PendingCall.PARTIAL_BATCHES or not is_open:
            self.assert_is_running()
            raise ResetNeeded(f"Cannot call `{method}` before calling `async_reset`")

    # Beginnings and ends.

    def begin(self, call: PendingCall) -> None:
        """Note that the call was sent to the hosts."""
        self.pending = call
        self.has_stepped = self.has_stepped or call is PendingCall.STEP

    def wait(self, call: PendingCall, timeout: float | None) -> None:
        """Wait for the pending call; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self.assert_is_running()
        self.assert_pending(call)
        self.pending = PendingCall.NOTHING
        with self.finishing(call):
            done = self._session.wait_until_idle(timeout)
        if not done:
            self.abandon()
            raise multiprocessing.TimeoutError(
                f"The call to `{call.value}_wait` has timed out after {timeout} second(s)."
            )

    @contextmanager
    def finishing(self, call: PendingCall) -> Iterator[None]:
        """Forget the call if the block fails."""
        try:
            yield
        except BaseException:
            self.forget(call)
            raise

    def finish_batch(self, receive: Callable[[], list[int]]) -> list[int]:
        """As :meth:`finishing`, without the cost of a context manager in every partial batch."""
        try:
            return receive()
        except BaseException:
            self.forget(PendingCall.PARTIAL_BATCHES)
            raise

    @contextmanager
    def in_one_go(self, call: PendingCall) -> Iterator[None]:
        """The block begins a call and ends it: if Ctrl-C comes in between, forget the call."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.pending = PendingCall.NOTHING
            self.forget(call)
            raise

    def forget(self, call: PendingCall) -> None:
        """Forget a failed call; if it was a step, the envs must be reset."""
        # A fragment that failed meanwhile consists of steps.
        was_no_step = call is PendingCall.CALL and not self.collecting.owes_fragments
        if not was_no_step:
            self.lose_track(call)
        if call is PendingCall.PARTIAL_BATCHES:
            # It is unknown which slots would still come: start anew with async_reset.
            self.pending = PendingCall.NOTHING
        self.abandon()

    def lose_track(self, call: PendingCall) -> None:
        """Note that nobody knows how far the envs have got, so that they must be reset."""
        self.has_reset, self._unfinished = False, call.value

    def abandon(self) -> None:
        """Ignore the answers to all requests so far."""
        self.collecting.abandon()
        self._session.abandon()

    def start_over(self) -> None:
        """Prepare for a reset of all slots."""
        self.collecting.start_over()

    def start_some_over(self) -> None:
        """Prepare for a reset of some slots: drop what a rollout left under way."""
        self.collecting.forget_owed()

    def leave_partial_batches(self) -> None:
        """Wait for what is under way, and ignore it."""
        if self.pending is PendingCall.PARTIAL_BATCHES:
            self._session.wait_until_idle(None)
            self.abandon()
            self.pending = PendingCall.NOTHING

    def close(self, timeout: float | None, terminate: bool) -> None:
        """End the run; a pending call and the workers may take ``timeout``."""
        if self.pending in (PendingCall.RESET, PendingCall.STEP, PendingCall.CALL):
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{self.pending.value}` "
                "to complete."
            )
            terminate = terminate or not self._finish(timeout)
        grace_s = _CLOSE_GRACE_S if timeout is None else timeout
        self._session.close(0.0 if terminate else grace_s)

    def close_abandoned(self) -> None:
        """End the run of a vector env that nobody references any more."""
        # A forked child of the head inherits this object, but not the run.
        if self.is_owner:
            self._session.close_from_any_thread()

    def _finish(self, timeout: float | None) -> bool:
        try:
            return self._session.wait_until_idle(timeout)
        except Exception as error:
            gymnasium.logger.warn(f"The pending call failed: {error!r}")
            return True


class _Called(Protocol):
    _calls: Calls
    _stopwatch: Stopwatch


_Owner = TypeVar("_Owner", bound=_Called)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def user_call(
    method: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Let only one thread at a time into ``method``, and count it with the stopwatch."""

    @functools.wraps(method)
    def call(self: _Owner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        turn, watch = self._calls.turn, self._stopwatch
        if not turn.acquire(False):
            self._calls.refuse_thread(method.__name__)
        try:
            if watch.is_outside and watch.times_this_thread():
                return watch.call(method.__name__, method, self, *args, **kwargs)
            return method(self, *args, **kwargs)
        finally:
            turn.release()

    return call
