"""ClusterEnv: Gymnasium's words → the head's words."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Sequence
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.agreement import agree_on_spaces
from clusterenv.arguments import (
    Seed,
    actions_by_row,
    distinct_slots,
    seed_by_slot,
    slots_to_reset,
    values_by_slot,
)
from clusterenv.backends.base import Backend
from clusterenv.backends.gymnasium import EnvFactory, EnvWrapper
from clusterenv.construction import choose_backend, choose_launcher, choose_num_workers
from clusterenv.head.crew import Limits
from clusterenv.head.head import Head
from clusterenv.launchers.base import Launcher
from clusterenv.policies.base import Policy
from clusterenv.rollout import Rollout, assemble
from clusterenv.sync import EveryVersion, SyncRule

_RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")


class State(Enum):
    """What the vector env waits for; the values are Gymnasium's own words."""

    DEFAULT = "default"
    WAITING_RESET = "reset"
    WAITING_STEP = "step"
    WAITING_CALL = "call"
    WAITING_ROLLOUT = "rollout"
    PARTIAL = "recv"


StepResult = tuple[
    Any,
    np.ndarray[Any, np.dtype[np.float64]],
    np.ndarray[Any, np.dtype[np.bool_]],
    np.ndarray[Any, np.dtype[np.bool_]],
    dict[str, Any],
]


class ClusterEnv(VectorEnv[Any, Any, Any]):
    """A Gymnasium vector env whose environments run in worker processes.

    Args:
        env: A Gymnasium id, a callable that makes one env, a list of such callables (one per
            slot), or a backend object.
        num_envs: How many envs (slots). The length of the list where ``env`` is one, else 1.
        num_workers: How many workers. By default one per core, never more than ``num_envs``.
        launcher: Where workers run: ``"local"`` processes, ``"in-process"`` threads, or a launcher
            object from :mod:`clusterenv.launchers`.
        wrappers: Applied to each env, first to last.
        shared_memory: Move arrays through shared memory where workers are processes of this
            machine that this process started. False sends them over tcp.
        copy: Return observations that are the caller's own. False returns the same arrays again,
            which the next call overwrites.
        observation_mode: ``"same"``, ``"different"`` or ``(batched space, single space)``, as in
            :class:`gymnasium.vector.AsyncVectorEnv`.
        autoreset_mode: When an env whose episode has ended is reset, as in Gymnasium.
        batch_size: How many slots :meth:`recv` returns. By default all of them.
        sync: When workers pull newly published weights; by default at every version.
        trust_workers: Let remote workers send pickled objects. Workers of this machine that this
            process started may do so anyway.
        startup_timeout_s: How long workers may take to start and build their envs.
        step_timeout_s: How long a worker may take for one request; after that it counts as lost.
        restart_timeout_s: How long a replacement may take to start.
        lease_s: A worker without its head ends itself after this time.
        max_restarts_per_minute: How often one worker may be replaced; 0 means never.
        **kwargs: Passed to the env, where ``env`` is an id.

    Example:
        >>> envs = ClusterEnv("CartPole-v1", num_envs=8)  # doctest: +SKIP
        >>> observations, infos = envs.reset(seed=42)  # doctest: +SKIP
    """

    def __init__(
        self,
        env: str | EnvFactory | Sequence[EnvFactory] | Backend,
        num_envs: int | None = None,
        num_workers: int | None = None,
        *,
        launcher: Launcher | str = "local",
        wrappers: Sequence[EnvWrapper] = (),
        shared_memory: bool = True,
        copy: bool = True,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        batch_size: int | None = None,
        sync: SyncRule | None = None,
        trust_workers: bool = False,
        startup_timeout_s: float = 120.0,
        step_timeout_s: float = 300.0,
        restart_timeout_s: float = 60.0,
        lease_s: float = 30.0,
        max_restarts_per_minute: int = 3,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        backend, self.num_envs, self.spec = choose_backend(env, num_envs, wrappers, kwargs)
        self.num_workers = choose_num_workers(num_workers, self.num_envs)
        launcher = choose_launcher(launcher)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.observation_mode = observation_mode
        self.shared_memory, self.copy = shared_memory, copy
        self.batch_size = self.num_envs if batch_size is None else batch_size
        if not 1 <= self.batch_size <= self.num_envs:
            raise ValueError(f"batch_size={batch_size} must be between 1 and {self.num_envs=}")
        self._head = Head(
            backend,
            self.num_envs,
            self.num_workers,
            launcher,
            self.autoreset_mode,
            shared_memory,
            trust_workers or launcher.spawns_here,
            sync or EveryVersion(),
            Limits(
                startup_timeout_s,
                step_timeout_s,
                restart_timeout_s,
                lease_s,
                max_restarts_per_minute,
            ),
        )
        self._owner_pid = os.getpid()
        self._end_of_life = weakref.finalize(self, _close_abandoned, self._head, self._owner_pid)
        try:
            self._settle(observation_mode)
        except BaseException:
            self._end_of_life()
            raise
        self._state = State.DEFAULT
        self._has_reset = False
        self._stepped = False
        self._seed = 0
        self._received: set[int] = set()
        self.closed = False

    def _settle(self, observation_mode: str | tuple[Space[Any], Space[Any]]) -> None:
        agreed = agree_on_spaces(
            [description for _, description in self._head.descriptions],
            [len(member.slots) for member, _ in self._head.descriptions],
            observation_mode,
        )
        self.single_observation_space = agreed.single_observation_space
        self.observation_space = agreed.observation_space
        self.single_action_space = agreed.single_action_space
        self.action_space = agreed.action_space
        self.metadata = {**agreed.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = agreed.render_mode
        self._head.agree(self.single_observation_space, self.single_action_space)

    # Reset.

    def reset(
        self,
        *,
        seed: Seed = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``; slot *i* gets ``seed + i``."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self,
        seed: Seed = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Start a reset; :meth:`reset_wait` gets its result."""
        self._assert_is_running()
        seeds = seed_by_slot(seed, self.num_envs)
        self._seed = seeds[0] if seeds[0] is not None else self._seed
        self._leave_partial_batches()
        self._assert_not_pending("reset_async", full_stop="")
        slots, options = slots_to_reset(options, self.num_envs)
        self._head.reset(slots, [seeds[slot] for slot in slots], options)
        self._state = State.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The result of :meth:`reset_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._wait(State.WAITING_RESET, timeout)
        self._has_reset, self._stepped = True, False
        batch = self._head.batch
        return batch.observations(self.copy), batch.take_infos(self._add_info)

    # Step.

    def step(self, actions: Any) -> StepResult:
        """Step every env with its action."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step; :meth:`step_wait` gets its result."""
        self._assert_is_running()
        self._assert_not_pending("step_async")
        self._assert_has_reset("step")
        self._stepped = True
        self._head.step_all(self._by_row(actions, self.num_envs))
        self._state = State.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """The result of :meth:`step_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._wait(State.WAITING_STEP, timeout)
        batch = self._head.batch
        return (
            batch.observations(self.copy),
            batch.rewards.copy(),
            batch.terminated.copy(),
            batch.truncated.copy(),
            batch.take_infos(self._add_info),
        )

    def _by_row(self, actions: Any, count: int) -> Any:
        return actions_by_row(
            actions, count, self._head.action_leaf, self.single_action_space, self.action_space
        )

    # Partial batches.

    def async_reset(self, seed: Seed = None) -> None:
        """Start a reset of all envs, for :meth:`recv` to return as they get ready."""
        self._assert_is_running()
        self._leave_partial_batches()
        self._assert_not_pending("async_reset")
        self._received.clear()
        # A worker works on one part of its slots while the user computes actions for another.
        self._head.reset_in_chunks(
            seed_by_slot(seed, self.num_envs), -(-self.batch_size // self.num_workers)
        )
        self._state = State.PARTIAL
        self._has_reset = True

    def recv(self) -> StepResult:
        """The first ``batch_size`` slots that are ready; ``info["env_id"]`` says which."""
        self._assert_is_running()
        self._assert_partial("recv")
        in_flight = self.num_envs - len(self._received)
        if in_flight < self.batch_size:
            raise NoAsyncCallError(
                f"Calling `recv` for batch_size={self.batch_size} slots while only {in_flight} "
                "are under way: call `send` for the slots that `recv` returned.",
                "recv",
            )
        slots = self._head.take_ready(self.batch_size)
        self._received.update(slots)
        batch, rows = self._head.batch, np.asarray(slots)
        infos = batch.take_infos_of(slots)
        infos["env_id"] = rows
        return (
            batch.observations_of(slots),
            batch.rewards[rows],
            batch.terminated[rows],
            batch.truncated[rows],
            infos,
        )

    def send(self, actions: Any, env_id: Any) -> None:
        """Step the slots ``env_id`` with ``actions``, for a later :meth:`recv` to return."""
        self._assert_is_running()
        self._assert_partial("send")
        slots = distinct_slots(env_id, self.num_envs)
        busy = [slot for slot in slots if slot not in self._received]
        if busy:
            raise AlreadyPendingCallError(
                f"Calling `send` for slots {busy}, which `recv` has not returned since the last "
                "`send`.",
                "send",
            )
        checked = self._by_row(actions, len(slots))
        order = sorted(range(len(slots)), key=slots.__getitem__)
        ordered = checked[order] if isinstance(checked, np.ndarray) else [checked[i] for i in order]
        self._received.difference_update(slots)
        self._head.step(sorted(slots), ordered)

    # Policies on workers.

    def publish(self, policy: Policy) -> int:
        """Make the weights of ``policy`` available to the workers; no bytes move yet.

        Returns:
            The version. Weights that are bit-equal to the newest ones are no new version.
        """
        self._assert_is_running()
        return self._head.crew.publisher.publish(policy, self._seed)

    def rollout(self, policy: Policy, num_steps: int) -> Rollout:
        """Publish ``policy``, let it act on the workers, and collect [T, N] from every slot."""
        self._assert_is_running()
        self._assert_not_pending("rollout")
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        if not self._has_reset:
            self.reset()
        if self._stepped:
            raise ResetNeeded("Cannot call `rollout` after `step` without `reset` in between")
        self.publish(policy)
        self._head.collect(num_steps)
        self._state = State.WAITING_ROLLOUT
        self._wait(State.WAITING_ROLLOUT, None)
        return assemble(self._head.take_fragments(), self.num_envs, self.single_observation_space)

    # Everything else that Gymnasium's vector envs can do.

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call; :meth:`call_wait` gets its results."""
        self._assert_is_running()
        self._assert_not_pending("call_async")
        if name in _RESERVED:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._head.call(name, args, kwargs)
        self._state = State.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of :meth:`call_async`, one per slot."""
        self._wait(State.WAITING_CALL, timeout)
        return self._head.take_values()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: one value per slot if a list or tuple, else the same."""
        self._assert_is_running()
        by_slot = values_by_slot(values, self.num_envs)
        self._assert_not_pending("set_attr")
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
        grace_s = _CLOSE_GRACE_S if timeout is None else timeout
        if self._state not in (State.DEFAULT, State.PARTIAL):
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{self._state.value}` "
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

    def __enter__(self) -> ClusterEnv:
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

    def _assert_not_pending(self, method: str, full_stop: str = ".") -> None:
        if self._state is not State.DEFAULT:
            raise AlreadyPendingCallError(
                f"Calling `{method}` while waiting for a pending call to `{self._state.value}` "
                f"to complete{full_stop}",
                self._state.value,
            )

    def _assert_partial(self, method: str) -> None:
        if self._state is not State.PARTIAL:
            raise ResetNeeded(f"Cannot call `{method}` before calling `async_reset`")

    def _leave_partial_batches(self) -> None:
        if self._state is State.PARTIAL:
            self._head.wait_until_idle(None)
            self._head.abandon()
            self._state = State.DEFAULT

    def _assert_has_reset(self, method: str) -> None:
        if not self._has_reset:
            raise ResetNeeded(f"Cannot call `{method}` before calling `reset`")

    def _wait(self, state: State, timeout: float | None) -> None:
        self._assert_is_running()
        verb = state.value
        if self._state is not state:
            raise NoAsyncCallError(
                f"Calling `{verb}_wait` without any prior call to `{verb}_async`.", verb
            )
        self._state = State.DEFAULT
        try:
            done = self._head.wait_until_idle(timeout)
        except BaseException:
            self._has_reset = self._has_reset and state is State.WAITING_CALL
            self._head.abandon()
            raise
        if not done:
            self._head.abandon()
            raise multiprocessing.TimeoutError(
                f"The call to `{verb}_wait` has timed out after {timeout} second(s)."
            )


_CLOSE_GRACE_S = 5.0


def _close_abandoned(head: Head, owner_pid: int) -> None:
    # A forked child of the head inherits this object, but not the run.
    if os.getpid() == owner_pid:
        head.close(0.0)
