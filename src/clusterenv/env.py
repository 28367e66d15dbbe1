"""ClusterEnv: Gymnasium's words → the head's."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.arguments import (
    Seed,
    actions_by_row,
    seed_by_slot,
    slots_of,
    slots_to_reset,
    values_by_slot,
)
from clusterenv.backends.base import Backend
from clusterenv.backends.gymnasium import EnvFactory, EnvWrapper
from clusterenv.calls import Call, Calls
from clusterenv.construction import (
    choose_backend,
    choose_batch_size,
    choose_launcher,
    choose_min_hosts,
    choose_num_workers,
    choose_sync_rule,
)
from clusterenv.head.collecting import Collecting
from clusterenv.head.opening import open_session
from clusterenv.head.partial_batches import PartialBatches
from clusterenv.head.profiler import Profiler, is_profile_wanted
from clusterenv.head.session import Session
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.policies.encoding import Encoding, check_encoding
from clusterenv.policy_calls import PolicyCalls
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.randomness import fresh_seed
from clusterenv.rollout import Episodes, Fragment, Rollout
from clusterenv.settings import Settings
from clusterenv.stopwatch import timed
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import SyncRule
from clusterenv.wire.addresses import Network

_RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")

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
        env: A Gymnasium id or spec, a callable that makes one env, a list of such callables (one
            per slot), or a backend object.
        num_envs: How many envs (slots). The length of the list where ``env`` is one, else 1.
        num_workers: How many workers. By default one per core of each host, never more than
            ``num_envs``.
        min_hosts: Start as soon as this many hosts are there, and go on while this many are left;
            they share all slots. Hosts that come later take theirs at the next reset or rollout,
            which restarts the envs of slots that move. By default all of them.
        balance: Give faster hosts more slots, by the speed that rollouts show. It restarts the
            envs of slots that move, so it is done only where it makes rollouts much shorter.
        launcher: Where workers run: ``"local"`` processes, ``"in-process"`` threads, or a launcher
            object such as :class:`clusterenv.SlurmLauncher`.
        wrappers: Applied to each env, first to last.
        shared_memory: Keep the host of local workers in this process. False puts it into a process
            of its own behind an encrypted connection, as on another machine.
        copy: Return observations that are the caller's own. False returns the same arrays again,
            which the next call overwrites; they are not to be written to.
        observation_mode: ``"same"``, ``"different"`` or ``(batched space, single space)``, as in
            :class:`gymnasium.vector.AsyncVectorEnv`.
        autoreset_mode: When an env whose episode has ended is reset, as in Gymnasium.
        batch_size: How many slots :meth:`recv` returns. By default all of them.
        sync: When hosts pull newly published weights; by default at every version.
        encoding: How weights travel: ``"raw"``; ``"bf16"``, which halves them and rounds what
            acts; or ``"delta"``, the difference to what a host has, rounded likewise.
        trust_workers: Let hosts on other machines send pickled objects. Workers of this machine
            that this process started may do so anyway.
        limits: How long things may take, and how often a worker or a host may be replaced.
        network: Where to listen for hosts on other machines, and how they reach it.
        **kwargs: Passed to the env, where ``env`` is an id.

    Example:
        >>> envs = ClusterEnv("CartPole-v1", num_envs=8)  # doctest: +SKIP
        >>> observations, infos = envs.reset(seed=42)  # doctest: +SKIP
    """

    def __init__(
        self,
        env: str | EnvSpec | EnvFactory | Sequence[EnvFactory] | Backend,
        num_envs: int | None = None,
        num_workers: int | None = None,
        *,
        min_hosts: int | None = None,
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
        limits: Limits | None = None,
        network: Network | None = None,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        backend, self.num_envs, self.spec = choose_backend(env, num_envs, wrappers, kwargs)
        self.batch_size = choose_batch_size(batch_size, self.num_envs)
        chosen = choose_launcher(launcher, shared_memory)
        self.copy, self.autoreset_mode = copy, AutoresetMode(autoreset_mode)
        settings = Settings(
            backend=backend,
            num_envs=self.num_envs,
            num_workers=choose_num_workers(num_workers, self.num_envs),
            launcher=chosen,
            min_hosts=choose_min_hosts(min_hosts, chosen),
            balance=balance,
            observation_mode=observation_mode,
            autoreset_mode=self.autoreset_mode,
            sync_rule=choose_sync_rule(sync),
            encoding=check_encoding(encoding),
            trust_workers=trust_workers,
            limits=limits or Limits(),
            network=network or Network(),
        )
        self._ledger = Ledger()
        self._session, spaces = open_session(settings, self._ledger)
        self._collecting = Collecting(self._session, balance)
        self._calls = Calls(self._session, self._collecting)
        self._stopwatch = self._session.fleet.stopwatch
        self._end_of_life = weakref.finalize(self, _close_abandoned, self._session, self._calls)
        self.single_observation_space = spaces.single_observation_space
        self.observation_space = spaces.observation_space
        self.single_action_space = spaces.single_action_space
        self.action_space = spaces.action_space
        self.metadata = {**spaces.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = spaces.render_mode
        self._run_seed = fresh_seed()
        # Of actions that are as the action space says, where they are one array.
        leaf = self._session.agreed.action_leaf
        self._action_dtype = None if leaf is None else leaf.dtype
        self._action_shape = () if leaf is None else (self.num_envs, *leaf.shape)
        self._policies = PolicyCalls(self._session, self._collecting, self._calls)
        try:
            self._partial = PartialBatches(self._session, self.batch_size)
        except BaseException:
            self._end_of_life()
            raise
        self.closed = False
        self._profiler = self.profile() if is_profile_wanted() else None
        if self._profiler is not None:
            self._profiler.begin_and_tell(self)

    # Reset.

    @timed
    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``; slot *i* gets ``seed + i``."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    @timed
    def reset_async(self, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; :meth:`reset_wait` gets its result."""
        self._assert_is_running()
        seeds = self._take_seed(seed)
        self._calls.leave_partial_batches()
        self._calls.assert_nothing_pending("reset_async", full_stop="")
        slots, options = slots_to_reset(options, self.num_envs)
        if len(slots) == self.num_envs:
            self._collecting.start_over()
        self._session.reset(slots, [seeds[slot] for slot in slots], options, self._run_seed)
        self._calls.pending = Call.RESET
        self._calls.resets_all = len(slots) == self.num_envs

    @timed
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The result of :meth:`reset_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._assert_is_running()
        self._calls.wait(Call.RESET, timeout)
        self._calls.has_reset = True
        self._calls.has_stepped = self._calls.has_stepped and not self._calls.resets_all
        batch = self._session.batch
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
        if self._stopwatch.is_outside:
            return self._stopwatch.call("step", self.step, actions)
        calls = self._calls
        if not (
            type(actions) is np.ndarray
            and actions.dtype is self._action_dtype
            and actions.shape == self._action_shape
            and calls.may_step_at_once
            and not self.closed
        ):
            return self._step_with_checks(actions)
        try:
            is_done = self._session.step_at_once(actions)
        except BaseException:
            calls.forget(Call.STEP)
            raise
        if not is_done:
            return self._step_with_checks(actions)
        calls.has_stepped = True
        return self._session.batch.results(self.copy, self._add_info)

    def _step_with_checks(self, actions: Any) -> StepResult:
        """Say what is wrong, or convert what is to be converted, or go on where it is under way."""
        if hasattr(actions, "act") or hasattr(actions, "state_dict"):
            return self._step_with(actions)
        if self._session.fleet.is_in_lockstep and self._calls.pending is Call.NOTHING:
            self._calls.has_stepped, self._calls.pending = True, Call.STEP
        else:
            self.step_async(actions)
        return self.step_wait()

    def _step_with(self, policy: Any) -> StepResult:
        self._assert_is_running()
        self._calls.assert_nothing_pending("step")
        self._calls.assert_has_reset("step")
        self.publish(policy)
        self._session.act()
        self._calls.has_stepped = True
        self._calls.pending = Call.STEP
        *result, infos = self.step_wait()
        infos.update(self._session.take_acted())
        return *result, infos

    @timed
    def step_async(self, actions: Any) -> None:
        """Start a step; :meth:`step_wait` gets its result."""
        self._assert_is_running()
        self._calls.assert_nothing_pending("step_async")
        self._calls.assert_has_reset("step")
        self._session.step_all(self._by_row(actions, self.num_envs))
        self._calls.has_stepped = True
        self._calls.pending = Call.STEP

    @timed
    def step_wait(self, timeout: float | None = None) -> StepResult:
        """The result of :meth:`step_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._assert_is_running()
        self._calls.wait(Call.STEP, timeout)
        return self._session.batch.results(self.copy, self._add_info)

    def _by_row(self, actions: Any, count: int) -> Any:
        leaf = self._session.agreed.action_leaf
        return actions_by_row(actions, count, leaf, self.single_action_space, self.action_space)

    # Partial batches.

    @timed
    def async_reset(self, seed: Seed = None) -> None:
        """Start a reset of all envs, for :meth:`recv` to return as they get ready."""
        self._assert_is_running()
        self._calls.leave_partial_batches()
        self._calls.assert_nothing_pending("async_reset")
        self._collecting.start_over()
        self._partial.reset(self._take_seed(seed), self._run_seed)
        self._calls.pending = Call.PARTIAL_BATCHES
        self._calls.has_reset = self._calls.has_stepped = True

    def recv(self) -> StepResult:
        """The first ``batch_size`` slots that are ready; ``info["env_id"]`` says which."""
        if self._stopwatch.is_outside:
            return self._stopwatch.call("recv", self.recv)
        self._assert_is_running()
        self._calls.assert_in_partial_batches("recv")
        self._partial.assert_enough_under_way()
        with self._calls.finishing(Call.PARTIAL_BATCHES):
            slots = self._partial.receive()
        return self._session.batch.results_of(slots)

    def send(self, actions: Any, env_id: Any) -> None:
        """Step the slots ``env_id`` with ``actions``, for a later :meth:`recv` to return."""
        if self._stopwatch.is_outside:
            self._stopwatch.call("send", self.send, actions, env_id)
            return
        self._assert_is_running()
        self._calls.assert_in_partial_batches("send")
        slots = slots_of(env_id)
        self._partial.check(slots)
        self._partial.send(slots, self._by_row(actions, len(slots)))

    # Policies on workers.

    @timed
    def publish(self, policy: Any) -> int:
        """Make the weights of ``policy`` available to the hosts; no bytes move yet.

        May be called from another thread, and while a :meth:`stream` is open.

        Args:
            policy: A policy from :mod:`clusterenv.policies`, or a ``torch.nn.Module`` that returns
                a ``torch.distributions`` object.

        Returns:
            The version. Weights that are bit-equal to the newest ones are no new version.
        """
        self._assert_is_running()
        return self._policies.publish(policy)

    @timed
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
        self._begin_collecting("rollout", num_steps)
        return self._policies.rollout(policy, num_steps, wait_num, patience_s)

    @timed
    def stream(self, num_steps: int, in_flight: int = 2) -> Iterator[Fragment]:
        """Fragments as they finish, each of some slots, while the learner trains.

        A slot has at most ``in_flight`` fragments under way or waiting to be looked at, so that
        memory and lag stay bounded when the learner is slower. Leaving the loop stops collection.
        """
        self._begin_collecting("stream", num_steps)
        return self._policies.stream(num_steps, in_flight, self._stopwatch)

    @timed
    def evaluate(
        self, policy: Any, episodes: int, *, deterministic: bool = True, seed: int = 0
    ) -> Episodes:
        """Play whole episodes with ``policy`` on the workers, in envs of their own.

        Training is not disturbed: the envs that :meth:`rollout` uses stay where they are. Each
        slot plays its share, so that short episodes are not favoured.
        """
        self._assert_is_running()
        return self._policies.evaluate(policy, episodes, deterministic, seed)

    @property
    def version(self) -> int:
        """The newest version that was published; 0 before the first."""
        return self._session.publisher.version

    @property
    def num_workers(self) -> int:
        """How many workers there are, on all hosts together."""
        return len(self.workers)

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers as they are now, in the order of their slots."""
        return self._session.fleet.workers

    @property
    def run_id(self) -> str:
        """What the run is called: ``python -m clusterenv top`` takes it, or its beginning."""
        return self._session.run_id

    def profile(self) -> Profiler:
        """Count where the time goes, at the head and on the workers.

        Example:
            >>> with envs.profile() as profile:  # doctest: +SKIP
            ...     train(envs)
            >>> print(profile)  # doctest: +SKIP
        """
        self._assert_is_running()
        self._calls.assert_nothing_pending("profile")
        return Profiler(self._session)

    @property
    def ledger(self) -> Ledger:
        """What has moved between head and hosts so far."""
        return self._ledger

    def _begin_collecting(self, method: str, num_steps: int) -> None:
        self._assert_is_running()
        self._policies.assert_can_collect(method, num_steps)
        if not self._calls.has_reset:
            self.reset()

    # Everything else that Gymnasium's vector envs can do.

    @timed
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    @timed
    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call; :meth:`call_wait` gets its results."""
        self._assert_is_running()
        self._calls.assert_nothing_pending("call_async")
        if name in _RESERVED:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._session.call(name, args, kwargs)
        self._calls.pending = Call.CALL

    @timed
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of :meth:`call_async`, one per slot."""
        self._assert_is_running()
        self._calls.wait(Call.CALL, timeout)
        return self._session.take_values()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    @timed
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: one value per slot if a list or tuple, else the same."""
        self._assert_is_running()
        by_slot = values_by_slot(values, self.num_envs)
        self._calls.assert_nothing_pending("set_attr")
        self._session.set_attr(name, by_slot)
        self._calls.pending = Call.CALL
        self._calls.wait(Call.CALL, None)

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
        if self._calls.is_owner:
            self._end_of_life.detach()
            if self._profiler is not None and not terminate:
                self._profiler.tell()
            self._calls.close(timeout, terminate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(terminate=exception[0] is not None)

    def _assert_is_running(self) -> None:
        self._calls.assert_is_running(self.closed)


def _close_abandoned(session: Session, calls: Calls) -> None:
    # A forked child of the head inherits this object, but not the run.
    if calls.is_owner:
        session.close_from_any_thread()
