"""Gymnasium's own calls → the head's: reset, step, call, render, close."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import VectorEnv

from clusterenv.arguments import (
    Seed,
    actions_by_row,
    seed_by_slot,
    slots_to_reset,
    values_by_slot,
)
from clusterenv.call_state import Call, CallState
from clusterenv.head.head import Head
from clusterenv.head.profiler import Profiler
from clusterenv.randomness import fresh_seed

_RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")
_CLOSE_GRACE_S = 5.0

StepResult = tuple[
    Any,
    np.ndarray[Any, np.dtype[np.float64]],
    np.ndarray[Any, np.dtype[np.bool_]],
    np.ndarray[Any, np.dtype[np.bool_]],
    dict[str, Any],
]


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """What every Gymnasium vector env can do, done by a head and its workers."""

    _profiler: Profiler | None

    def __init__(self, head: Head, copy: bool) -> None:
        self.num_envs = head.num_envs
        self.copy = copy
        self._head = head
        self._owner_pid = os.getpid()
        self._end_of_life = weakref.finalize(self, _close_abandoned, head, self._owner_pid)
        self._state = CallState()
        # Of actions that are as the action space says, where they are one array.
        self._action_dtype: np.dtype[Any] | None = None
        self._action_shape: tuple[int, ...] = ()
        self._run_seed = fresh_seed()

    # Reset.

    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``; slot *i* gets ``seed + i``."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; :meth:`reset_wait` gets its result."""
        self._assert_is_running()
        seeds = self._take_seed(seed)
        self._leave_partial_batches()
        self._state.assert_nothing_pending("reset_async", full_stop="")
        slots, options = slots_to_reset(options, self.num_envs)
        self._head.reset(slots, [seeds[slot] for slot in slots], options, self._run_seed)
        self._state.pending = Call.RESET
        self._state.resets_all = len(slots) == self.num_envs

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The result of :meth:`reset_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._wait(Call.RESET, timeout)
        self._state.has_reset = True
        self._state.has_stepped = self._state.has_stepped and not self._state.resets_all
        batch = self._head.batch
        return batch.observations(self.copy), batch.infos.take(self._add_info)

    def _take_seed(self, seed: Seed) -> list[int | None]:
        seeds = seed_by_slot(seed, self.num_envs)
        if seeds[0] is not None:
            self._run_seed = abs(seeds[0]) % 2**63
        return seeds

    # Step.

    def step(self, actions: Any) -> StepResult:
        """Step every env with its action, or with that of a policy.

        Given a policy instead of actions, it acts on the workers, and the infos say what it did:
        ``info["action"]``, ``info["log_prob"]``, ``info["value"]``.
        """
        state = self._state
        if not (
            type(actions) is np.ndarray
            and actions.dtype is self._action_dtype
            and actions.shape == self._action_shape
            and state.pending is Call.NOTHING
            and state.has_reset
            and not self.closed
            and os.getpid() == self._owner_pid
        ):
            return self._step_with_checks(actions)
        try:
            is_done = self._head.step_at_once(actions)
        except BaseException:
            self._forget(Call.STEP)
            raise
        if not is_done:
            return self._step_with_checks(actions)
        state.has_stepped = True
        return self._head.batch.results(self.copy, self._add_info)

    def _step_with_checks(self, actions: Any) -> StepResult:
        """Say what is wrong, or convert what is to be converted, or go on where it is under way."""
        if self._head.is_in_lockstep and self._state.pending is Call.NOTHING:
            self._state.has_stepped, self._state.pending = True, Call.STEP
        else:
            self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step; :meth:`step_wait` gets its result."""
        self._assert_is_running()
        self._state.assert_nothing_pending("step_async")
        self._state.assert_has_reset("step")
        self._head.step_all(self._by_row(actions, self.num_envs))
        self._state.has_stepped = True
        self._state.pending = Call.STEP

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """The result of :meth:`step_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._wait(Call.STEP, timeout)
        return self._head.batch.results(self.copy, self._add_info)

    def _by_row(self, actions: Any, count: int) -> Any:
        return actions_by_row(
            actions, count, self._head.action_leaf, self.single_action_space, self.action_space
        )

    # Everything else that Gymnasium's vector envs can do.

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call; :meth:`call_wait` gets its results."""
        self._assert_is_running()
        self._state.assert_nothing_pending("call_async")
        if name in _RESERVED:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._head.call(name, args, kwargs)
        self._state.pending = Call.CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of :meth:`call_async`, one per slot."""
        self._wait(Call.CALL, timeout)
        return self._head.take_values()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: one value per slot if a list or tuple, else the same."""
        self._assert_is_running()
        by_slot = values_by_slot(values, self.num_envs)
        self._state.assert_nothing_pending("set_attr")
        self._head.set_attr(name, by_slot)
        self._head.wait_until_idle(None)
        self._head.take_values()

    def render(self) -> tuple[Any, ...]:
        """What each env renders."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random number generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each env's random number generator."""
        return self.get_attr("np_random")

    # Ending.

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the envs and end the workers; called by :meth:`close`.

        Args:
            timeout: How long a pending call and the workers may take before they are ended.
            terminate: End the workers at once; their envs do not get to close.
        """
        if os.getpid() != self._owner_pid:
            return
        if self._profiler is not None and not terminate:
            self._profiler.tell()
        grace_s = _CLOSE_GRACE_S if timeout is None else timeout
        pending = self._state.pending
        if pending in (Call.RESET, Call.STEP, Call.CALL, Call.ROLLOUT):
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{pending.value}` "
                "to complete."
            )
            terminate = terminate or not self._finish_pending(timeout)
        self._end_of_life.detach()
        self._head.close(0.0 if terminate else grace_s)

    def _finish_pending(self, timeout: float | None) -> bool:
        try:
            return self._head.wait_until_idle(timeout)
        except Exception as error:
            gymnasium.logger.warn(f"The pending call failed: {error!r}")
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(terminate=exception[0] is not None)

    # Checks.

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )
        if os.getpid() != self._owner_pid:
            raise ClosedEnvironmentError(
                f"this {type(self).__name__} belongs to process {self._owner_pid}: a forked child "
                "cannot use it, make one of its own"
            )

    def _leave_partial_batches(self) -> None:
        if self._state.pending is Call.PARTIAL_BATCHES:
            self._head.wait_until_idle(None)
            self._head.abandon()
            self._state.pending = Call.NOTHING

    def _wait(self, call: Call, timeout: float | None) -> None:
        self._assert_is_running()
        self._state.assert_pending(call)
        self._state.pending = Call.NOTHING
        try:
            done = self._head.wait_until_idle(timeout)
        except BaseException:
            self._forget(call)
            raise
        if not done:
            self._head.abandon()
            raise multiprocessing.TimeoutError(
                f"The call to `{call.value}_wait` has timed out after {timeout} second(s)."
            )

    @contextmanager
    def _finishing(self, call: Call) -> Iterator[None]:
        """Wait for ``call`` here; if that fails, forget it."""
        self._state.pending = Call.NOTHING
        try:
            yield
        except BaseException:
            self._forget(call)
            raise

    def _forget(self, call: Call) -> None:
        self._state.has_reset = self._state.has_reset and call is Call.CALL
        self._head.abandon()


def _close_abandoned(head: Head, owner_pid: int) -> None:
    # A forked child of the head inherits this object, but not the run.
    if os.getpid() == owner_pid:
        head.close_from_any_thread()
