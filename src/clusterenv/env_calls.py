"""Resets, steps and calls as the user makes them: checks, order, and requests to the session."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterenv.agreement import AgreedSpaces
from clusterenv.arguments import (
    Seed,
    actions_by_row,
    seed_by_slot,
    slots_to_reset,
    values_by_slot,
)
from clusterenv.arrays import Array
from clusterenv.calls import Calls, PendingCall
from clusterenv.head.partial_batches import PartialBatches
from clusterenv.head.same_envs import warn_of_same_envs
from clusterenv.head.session import Session
from clusterenv.randomness import fresh_seed

ResetResult = tuple[Any, dict[str, Any]]
StepResult = tuple[
    Any,
    np.ndarray[Any, np.dtype[np.float64]],
    np.ndarray[Any, np.dtype[np.bool_]],
    np.ndarray[Any, np.dtype[np.bool_]],
    dict[str, Any],
]
_RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")


class EnvCalls:
    """What :class:`clusterenv.ClusterEnv` does with envs while no policy acts on the workers."""

    def __init__(self, session: Session, calls: Calls, spaces: AgreedSpaces) -> None:
        self._session, self._calls, self._batch = session, calls, session.batch
        self._action_leaf = session.agreed.action_leaf
        self._single, self._batched = spaces.single_action_space, spaces.action_space
        self._num_envs = session.num_envs
        self._run_seed = fresh_seed()

    # Resets.

    def reset(self) -> None:
        """Reset all slots, for a policy that will act on the workers."""
        self.start_reset(None, None)
        self.finish_reset(None)
        self._batch.forget_infos()

    def start_reset(self, seed: Seed, options: dict[str, Any] | None) -> None:
        """Start a reset of all slots, or of those of ``options["reset_mask"]``."""
        self._calls.assert_is_running()
        seeds = self._take_seed(seed)
        self._calls.leave_partial_batches()
        self._calls.assert_nothing_pending("reset_async", full_stop="")
        slots, options = slots_to_reset(options, self._num_envs)
        self._calls.resets_all = len(slots) == self._num_envs
        if self._calls.resets_all:
            self._calls.start_over()
        else:
            self._calls.start_some_over()
        self._session.reset(slots, [seeds[slot] for slot in slots], options, self._run_seed)
        self._calls.pending = PendingCall.RESET

    def finish_reset(self, timeout: float | None) -> None:
        """Wait for the reset under way."""
        self._calls.wait(PendingCall.RESET, timeout)
        self._calls.has_reset = True
        self._calls.has_stepped = self._calls.has_stepped and not self._calls.resets_all
        if self._calls.resets_all:
            warn_of_same_envs(self._session)

    def start_partial_batches(self, seed: Seed, partial: PartialBatches) -> None:
        """Start a reset of all slots, whose rows are returned as they come."""
        self._calls.assert_is_running()
        self._calls.leave_partial_batches()
        self._calls.assert_nothing_pending("async_reset")
        self._calls.start_over()
        partial.reset(self._take_seed(seed), self._run_seed)
        self._calls.pending = PendingCall.PARTIAL_BATCHES
        self._calls.has_reset = self._calls.has_stepped = True

    def _take_seed(self, seed: Seed) -> list[int | None]:
        seeds = seed_by_slot(seed, self._num_envs)
        if seeds[0] is not None:
            self._run_seed = abs(seeds[0]) % 2**63
        return seeds

    # Steps.

    def start_step(self, actions: Any) -> None:
        """Start a step of all slots."""
        self._calls.assert_may_begin("step_async")
        self._calls.assert_has_reset("step")
        self._session.step_all(self.by_row(actions, self._num_envs))
        self._calls.begin(PendingCall.STEP)

    def take_over_step(self) -> bool:
        """Whether a step that was to be done at once is under way; if so, it is now pending."""
        is_under_way = self._session.is_in_lockstep
        if is_under_way and self._calls.pending is PendingCall.NOTHING:
            self._calls.begin(PendingCall.STEP)
            return True
        return False

    @property
    def usual_actions(self) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Dtype and shape of actions that need no conversion; None if they are not one array."""
        leaf = self._action_leaf
        return (None, ()) if leaf is None else (leaf.dtype, (self._num_envs, *leaf.shape))

    def by_row(self, actions: Any, count: int) -> Array | list[Any]:
        """The actions of ``count`` slots in the session's form."""
        leaf = self._action_leaf
        return actions_by_row(actions, count, leaf, self._single, self._batched)

    # Calls.

    def start_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start a call of a method of each env."""
        self._calls.assert_may_begin("call_async")
        if name in _RESERVED:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._session.call(name, args, kwargs)
        self._calls.begin(PendingCall.CALL)

    def finish_call(self, timeout: float | None) -> tuple[Any, ...]:
        """Wait for the call under way; returns its results by slot."""
        self._calls.wait(PendingCall.CALL, timeout)
        return self._session.take_values()

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, and wait until it is done."""
        self._calls.assert_is_running()
        by_slot = values_by_slot(values, self._num_envs)
        self._calls.assert_nothing_pending("set_attr")
        self._session.set_attr(name, by_slot)
        self._calls.begin(PendingCall.CALL)
        self._calls.wait(PendingCall.CALL, None)
