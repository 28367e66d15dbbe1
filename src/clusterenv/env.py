"""ClusterEnv: Gymnasium's words → the head's words."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.error import ClosedEnvironmentError
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
from clusterenv.call_state import Call, CallState
from clusterenv.construction import (
    choose_backend,
    choose_launcher,
    choose_min_workers,
    choose_num_workers,
    wrap_module,
)
from clusterenv.head import profiler
from clusterenv.head.crew import Limits
from clusterenv.head.head import Head
from clusterenv.head.profiler import Profiler
from clusterenv.head.roster import Roster
from clusterenv.launchers.base import Launcher
from clusterenv.ledger import Ledger
from clusterenv.partial_batches import PartialBatches
from clusterenv.policies.base import Policy
from clusterenv.policies.encoding import Encoding, check_encoding
from clusterenv.randomness import fresh_seed
from clusterenv.rollout import (
    Episodes,
    Fragment,
    FragmentPart,
    Rollout,
    assemble,
    episodes_by_slot,
)
from clusterenv.sync import EveryVersion, SyncRule
from clusterenv.wire.addresses import Reach

_RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")


_AnyFragment = TypeVar("_AnyFragment", bound=Fragment)

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
        num_workers: How many workers. By default one per core (on ssh hosts: as many as they have
            room for), never more than ``num_envs``.
        min_workers: Start as soon as this many workers are there, and go on while this many are
            left; they share all slots. Workers that come later take theirs at the next reset or
            rollout, which restarts the envs of slots that move. By default all of them.
        balance: Give faster workers more slots, by the speed that rollouts show. It restarts the
            envs of slots that move, so it is done only where it makes rollouts much shorter.
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
        encoding: How weights travel: ``"raw"``; ``"bf16"``, which halves them and rounds what
            acts; or ``"delta"``, the difference to what a worker has, rounded likewise.
        trust_workers: Let remote workers send pickled objects. Workers of this machine that this
            process started may do so anyway.
        startup_timeout_s: How long workers may take to start and build their envs.
        step_timeout_s: How long a worker may take for one request; after that it counts as lost.
        restart_timeout_s: How long a replacement may take to start.
        lease_s: A worker without its head ends itself after this time.
        max_restarts_per_minute: How often one worker may be replaced; 0 means never.
        interface: The name or address of the network interface to listen on; by default the one
            that leads to the workers.
        advertise_host: What workers connect to, where it is not the address listened on: behind
            NAT, a port forwarding or a Kubernetes Service.
        port: The port to listen on; 0 takes a free one.
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
        min_workers: int | None = None,
        balance: bool = False,
        launcher: Launcher | str = "local",
        wrappers: Sequence[EnvWrapper] = (),
        shared_memory: bool = True,
        copy: bool = True,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        batch_size: int | None = None,
        sync: SyncRule | None = None,
        encoding: Encoding = "raw",
        trust_workers: bool = False,
        startup_timeout_s: float = 120.0,
        step_timeout_s: float = 300.0,
        restart_timeout_s: float = 60.0,
        lease_s: float = 30.0,
        max_restarts_per_minute: int = 3,
        interface: str | None = None,
        advertise_host: str | None = None,
        port: int = 0,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        backend, self.num_envs, self.spec = choose_backend(env, num_envs, wrappers, kwargs)
        launcher = choose_launcher(launcher)
        self.num_workers = choose_num_workers(num_workers, self.num_envs, launcher)
        self._workers_are_here = launcher.spawns_here
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.observation_mode = observation_mode
        self.shared_memory, self.copy = shared_memory, copy
        check_encoding(encoding)
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
            encoding,
            Limits(
                startup_timeout_s,
                step_timeout_s,
                restart_timeout_s,
                lease_s,
                max_restarts_per_minute,
            ),
            Reach(interface, advertise_host, port),
            choose_min_workers(min_workers, self.num_workers),
            balance,
        )
        self._owner_pid = os.getpid()
        self._end_of_life = weakref.finalize(self, _close_abandoned, self._head, self._owner_pid)
        self._state = CallState()
        self._run_seed = fresh_seed()
        self._wrapped_module: tuple[Any, Policy] | None = None
        try:
            self._settle(observation_mode)
        except BaseException:
            self._end_of_life()
            raise
        self.closed = False
        self._profiler = self.profile() if profiler.is_wanted() else None
        if self._profiler is not None:
            self._profiler.begin_and_tell()

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
        self._partial = PartialBatches(self._head, self.batch_size, agreed.steps_together)

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
        return batch.observations(self.copy), batch.take_infos(self._add_info)

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
        if hasattr(actions, "act") or hasattr(actions, "state_dict"):
            return self._step_with(actions)
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
        batch = self._head.batch
        return (
            batch.observations(self.copy),
            batch.rewards.copy(),
            batch.terminated.copy(),
            batch.truncated.copy(),
            batch.take_infos(self._add_info),
        )

    def _step_with(self, policy: Any) -> StepResult:
        self._assert_is_running()
        self._state.assert_nothing_pending("step")
        self._state.assert_has_reset("step")
        self.publish(policy)
        self._head.collector.step()
        self._state.has_stepped = True
        self._state.pending = Call.STEP
        *result, infos = self.step_wait()
        infos.update(self._head.collector.take_acted())
        return *result, infos

    def _by_row(self, actions: Any, count: int) -> Any:
        return actions_by_row(
            actions, count, self._head.action_leaf, self.single_action_space, self.action_space
        )

    # Partial batches.

    def async_reset(self, seed: Seed = None) -> None:
        """Start a reset of all envs, for :meth:`recv` to return as they get ready."""
        self._assert_is_running()
        self._leave_partial_batches()
        self._state.assert_nothing_pending("async_reset")
        self._partial.reset(self._take_seed(seed), self._run_seed)
        self._state.pending = Call.PARTIAL_BATCHES
        self._state.has_reset = self._state.has_stepped = True

    def recv(self) -> StepResult:
        """The first ``batch_size`` slots that are ready; ``info["env_id"]`` says which."""
        self._assert_is_running()
        self._state.assert_has_reset("recv", by="async_reset")
        self._partial.assert_enough_under_way()
        try:
            slots = self._partial.receive()
        except BaseException:
            # Nobody knows which slots would still come: start anew with async_reset.
            self._head.abandon()
            self._state.pending, self._state.has_reset = Call.NOTHING, False
            raise
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
        self._state.assert_has_reset("send", by="async_reset")
        slots = distinct_slots(env_id, self.num_envs)
        self._partial.send(slots, self._by_row(actions, len(slots)))

    # Policies on workers.

    def publish(self, policy: Any) -> int:
        """Make the weights of ``policy`` available to the workers; no bytes move yet.

        May be called from another thread, and while a :meth:`stream` is open.

        Args:
            policy: A policy from :mod:`clusterenv.policies`, or a ``torch.nn.Module`` that returns
                a ``torch.distributions`` object.

        Returns:
            The version. Weights that are bit-equal to the newest ones are no new version.
        """
        self._assert_is_running()
        version = self._head.crew.publisher.publish(self._as_policy(policy))
        streams = self._state.pending is Call.STREAM
        self._head.surveyor.survey(sparingly=streams)
        if streams:
            self._head.collector.announce()
        return version

    def rollout(
        self,
        policy: Any,
        num_steps: int,
        *,
        wait_num: int | None = None,
        patience_s: float = 0.0,
    ) -> Rollout:
        """Publish ``policy``, let it act on the workers, and collect [T, N] from every slot.

        Args:
            policy: As :meth:`publish` takes it.
            num_steps: T, the steps of each slot.
            wait_num: Return once this many slots are there: then only these are columns, as
                ``rollout.slots`` says, and the others come with a later rollout. By default all.
            patience_s: How long to wait for the others once ``wait_num`` slots are there.
        """
        num_steps = self._begin_collecting("rollout", num_steps)
        wait_num = self.num_envs if wait_num is None else index(wait_num)
        if not 1 <= wait_num <= self.num_envs:
            raise ValueError(f"wait_num={wait_num} must be between 1 and {self.num_envs=}")
        self.publish(policy)
        collector = self._head.collector
        collector.collect(num_steps)
        self._state.pending = Call.ROLLOUT
        with self._finishing(Call.ROLLOUT):
            collector.wait_for(wait_num, patience_s)
        return self._assemble(Rollout, collector.take_parts())

    def stream(self, num_steps: int, in_flight: int = 2) -> Iterator[Fragment]:
        """Fragments as they finish, each of one worker's slots, while the learner trains.

        A worker has at most ``in_flight`` fragments under way or waiting to be looked at, so that
        memory and lag stay bounded when the learner is slower. Leaving the loop stops collection.
        """
        num_steps, in_flight = self._begin_collecting("stream", num_steps), index(in_flight)
        if in_flight < 1:
            raise ValueError(f"in_flight={in_flight} must be at least 1")
        if self._head.crew.publisher.version == 0:
            raise ValueError("stream() needs a policy: call publish(policy) first")
        self._state.pending = Call.STREAM
        stream = self._stream(num_steps, in_flight)
        # Begun here: closing a generator that was never begun would not run its `finally`.
        next(stream)
        return stream

    def _stream(self, num_steps: int, in_flight: int) -> Iterator[Any]:
        try:
            yield None
            for part in self._head.collector.stream(num_steps, in_flight):
                yield self._assemble(Fragment, [part])
                self._assert_is_running()
        except Exception:
            # A fragment that failed halfway leaves its envs nobody knows where.
            self._state.has_reset = False
            raise
        finally:
            self._state.pending = Call.NOTHING

    def evaluate(
        self, policy: Any, episodes: int, *, deterministic: bool = True, seed: int = 0
    ) -> Episodes:
        """Play whole episodes with ``policy`` on the workers, in envs of their own.

        Training is not disturbed: the envs that :meth:`rollout` uses stay where they are. Each
        slot plays its share, so that short episodes are not favoured.
        """
        self._assert_is_running()
        self._state.assert_nothing_pending("evaluate")
        episodes, seed = index(episodes), index(seed)
        if episodes < 1:
            raise ValueError(f"episodes={episodes} must be at least 1")
        self.publish(policy)
        # Spread over all slots, and so over all workers.
        slots = np.arange(episodes) * self.num_envs // episodes
        shares = np.bincount(slots, minlength=self.num_envs).tolist()
        self._head.collector.evaluate(shares, seed, deterministic)
        self._state.pending = Call.CALL
        self._wait(Call.CALL, None)
        return episodes_by_slot(self._head.take_values())

    @property
    def version(self) -> int:
        """The newest version that was published; 0 before the first."""
        return self._head.crew.publisher.version

    @property
    def roster(self) -> Roster:
        """The workers, and the slots that each owns; to be looked at only."""
        return self._head.roster

    @property
    def run_id(self) -> str:
        """What ``python -m clusterenv top RUN`` calls this run."""
        return self._head.run.id

    def profile(self) -> Profiler:
        """Find out where the time goes between ``with`` and its end.

        Example:
            >>> with envs.profile() as profile:  # doctest: +SKIP
            ...     train(envs)
            >>> print(profile)  # doctest: +SKIP
        """
        self._assert_is_running()
        self._state.assert_nothing_pending("profile")
        return Profiler(self, self._head, self._workers_are_here)

    @property
    def ledger(self) -> Ledger:
        """What has moved between head and workers so far."""
        return self._head.crew.ledger

    def _begin_collecting(self, method: str, num_steps: int) -> int:
        self._assert_is_running()
        self._state.assert_nothing_pending(method)
        self._state.assert_can_collect(method)
        if index(num_steps) < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")
        if not self._state.has_reset:
            self.reset()
        return index(num_steps)

    def _assemble(self, kind: type[_AnyFragment], parts: list[FragmentPart]) -> _AnyFragment:
        return assemble(kind, parts, self.single_observation_space, self.single_action_space)

    def _as_policy(self, policy: Any) -> Policy:
        if hasattr(policy, "act"):
            return policy  # type: ignore[no-any-return]
        if self._wrapped_module is None or self._wrapped_module[0] is not policy:
            self._wrapped_module = policy, wrap_module(policy)
        return self._wrapped_module[1]

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

    def _leave_partial_batches(self) -> None:
        if self._state.pending is Call.PARTIAL_BATCHES:
            self._head.wait_until_idle(None)
            self._head.abandon()
            self._state.pending = Call.NOTHING

    def _wait(self, call: Call, timeout: float | None) -> None:
        self._assert_is_running()
        self._state.assert_pending(call)
        with self._finishing(call):
            done = self._head.wait_until_idle(timeout)
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
            self._state.has_reset = self._state.has_reset and call is Call.CALL
            self._head.abandon()
            raise


_CLOSE_GRACE_S = 5.0


def _close_abandoned(head: Head, owner_pid: int) -> None:
    # A forked child of the head inherits this object, but not the run.
    if os.getpid() == owner_pid:
        head.close_from_any_thread()
