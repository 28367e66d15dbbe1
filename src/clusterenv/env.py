"""ClusterEnv: translates Gymnasium's calls into those of the head."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.arguments import Seed, slots_of
from clusterenv.backends.base import Backend
from clusterenv.backends.gymnasium import EnvFactory, EnvWrapper
from clusterenv.calls import Calls, PendingCall, user_call
from clusterenv.construction import choose_backend, choose_launcher, choose_settings
from clusterenv.env_calls import EnvCalls, ResetResult, StepResult
from clusterenv.head.collecting import Collecting
from clusterenv.head.opening import open_session
from clusterenv.head.partial_batches import PartialBatches
from clusterenv.head.profiler import Profiler, is_profile_wanted
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.policies.encoding import Encoding
from clusterenv.policy_calls import PolicyCalls
from clusterenv.protocol.worker_status import WorkerStatus
from clusterenv.rollout import Episodes, Fragment, Rollout
from clusterenv.stopwatch import timed
from clusterenv.sync.ledger import Ledger
from clusterenv.sync.rules import SyncRule
from clusterenv.wire.addresses import Network


class ClusterEnv(VectorEnv[Any, Any, Any]):
    """A Gymnasium vector env whose environments run in worker processes.

    Args:
        env: A Gymnasium id or spec, a callable that makes one env, a list of such callables (one
            per slot), or a backend object.
        num_envs: How many envs (slots). By default the length of the list ``env``, or else 1.
        num_workers: How many workers. By default one per core of each host, never more than
            ``num_envs``.
        min_hosts: Start as soon as this many hosts have joined, and go on while this many are left;
            they share all slots. Hosts that join later get theirs at the next reset or rollout,
            which restarts the envs of slots that move. By default all of them.
        balance: Give faster hosts more slots, by the speed measured in rollouts. This restarts the
            envs of slots that move, so it is done only where it makes rollouts much shorter.
        launcher: Where workers run: ``"local"`` processes, ``"in-process"`` threads, or a launcher
            object such as :class:`clusterenv.SlurmLauncher`.
        wrappers: Applied to each env, first to last.
        shared_memory: Keep the host of local workers in this process. False puts it into a process
            of its own behind an encrypted connection, as on another machine.
        copy: Return observations that belong to the caller. False returns the same arrays each
            time; the next call overwrites them, and the caller must not write to them.
        observation_mode: ``"same"``, ``"different"`` or ``(batched space, single space)``, as in
            :class:`gymnasium.vector.AsyncVectorEnv`.
        autoreset_mode: When an env whose episode has ended is reset, as in Gymnasium.
        batch_size: How many slots :meth:`recv` returns. By default all of them.
        sync: When hosts pull newly published weights; by default at every version.
        encoding: How weights travel: ``"raw"``; ``"bf16"``, which halves them and rounds the
            weights that act; or ``"delta"``, the difference from what a host holds, also rounded.
        trust_workers: Let hosts on other machines send pickled objects. Workers of this machine
            that this process started may do so anyway.
        limits: How long things may take, and how often a worker or a host may be replaced.
        network: Where to listen for hosts on other machines, and how they reach it.
        log_dir: A folder for a log of what each worker prints, on the worker's machine.
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
        wrappers: EnvWrapper | Sequence[EnvWrapper] | None = (),
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
        log_dir: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        settings = choose_settings(
            choose_backend(env, num_envs, wrappers, kwargs),
            choose_launcher(launcher, shared_memory),
            num_workers=num_workers,
            min_hosts=min_hosts,
            balance=balance,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            batch_size=batch_size,
            sync=sync,
            encoding=encoding,
            trust_workers=trust_workers,
            limits=limits,
            network=network,
            log_dir=log_dir,
        )
        self.num_envs, self.batch_size = settings.num_envs, settings.batch_size
        self.copy, self.autoreset_mode, self.spec = copy, settings.autoreset_mode, settings.spec
        self._ledger = Ledger()
        self._session, spaces = open_session(settings, self._ledger)
        self._batch, self._stopwatch = self._session.batch, self._session.stopwatch
        self._calls = Calls(self._session, Collecting(self._session, balance, self._ledger))
        self._end_of_life = weakref.finalize(self, self._calls.close_abandoned)
        self._envs = EnvCalls(self._session, self._calls, spaces)
        self._policies = PolicyCalls(self._session, self._calls, self._envs, settings.backend)
        self._partial = PartialBatches(self._session, self.batch_size)
        self._action_dtype, self._action_shape = self._envs.usual_actions
        self.single_observation_space = spaces.single_observation_space
        self.observation_space = spaces.observation_space
        self.single_action_space = spaces.single_action_space
        self.action_space = spaces.action_space
        self.metadata = {**spaces.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = spaces.render_mode
        self.closed = False
        self._profiler = self.profile().begin_and_tell(self) if is_profile_wanted() else None

    # Reset and step.

    @user_call
    def reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Reset all envs, or those of ``options["reset_mask"]``; slot *i* gets ``seed + i``."""
        with self._calls.in_one_go(PendingCall.RESET):
            self.reset_async(seed=seed, options=options)
            return self.reset_wait()

    @user_call
    def reset_async(self, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; :meth:`reset_wait` gets its result."""
        self._envs.start_reset(seed, options)

    @user_call
    def reset_wait(self, timeout: float | None = None) -> ResetResult:
        """The result of :meth:`reset_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._envs.finish_reset(timeout)
        batch = self._session.batch
        return batch.observations(self.copy), batch.infos.take(self._add_info)

    def step(self, actions: Any) -> StepResult:
        """Step every env with its action, or with that of a policy.

        A policy acts on the workers, and the infos report what it did: ``info["action"]``,
        ``info["version"]``, ``info["log_prob"]``, ``info["value"]``; zeros where the env was lost.
        """
        if self._stopwatch.is_outside:
            return self._stopwatch.call("step", self.step, actions)
        calls = self._calls
        if not calls.turn.acquire(False):
            calls.refuse_thread("step")
        try:
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
                calls.forget(PendingCall.STEP)
                raise
            if not is_done:
                return self._step_with_checks(actions)
            calls.has_stepped = True
            return self._batch.results(self.copy, self._add_info)
        finally:
            calls.turn.release()

    def _step_with_checks(self, actions: Any) -> StepResult:
        """Check and convert ``actions``, let a policy act, or take over a step under way."""
        with self._calls.in_one_go(PendingCall.STEP):
            if hasattr(actions, "act") or hasattr(actions, "state_dict"):
                self._policies.start_step(actions)
                *result, infos = self.step_wait()
                infos.update(self._session.take_acted())
                return *result, infos
            if not self._envs.take_over_step():
                self.step_async(actions)
            return self.step_wait()

    @user_call
    def step_async(self, actions: Any) -> None:
        """Start a step; :meth:`step_wait` gets its result."""
        self._envs.start_step(actions)

    @user_call
    def step_wait(self, timeout: float | None = None) -> StepResult:
        """The result of :meth:`step_async`; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._calls.wait(PendingCall.STEP, timeout)
        return self._batch.results(self.copy, self._add_info)

    # Partial batches.

    @user_call
    def async_reset(self, seed: Seed = None) -> None:
        """Start a reset of all envs; :meth:`recv` returns them as they become ready."""
        self._envs.start_partial_batches(seed, self._partial)

    @user_call
    def recv(self) -> StepResult:
        """The first ``batch_size`` slots that are ready; ``info["env_id"]`` says which."""
        self._calls.assert_in_partial_batches("recv")
        self._partial.assert_enough_under_way()
        return self._batch.results_of(self._calls.finish_batch(self._partial.receive))

    @user_call
    def send(self, actions: Any, env_id: Any) -> None:
        """Step the slots ``env_id`` with ``actions``; a later :meth:`recv` returns them."""
        self._calls.assert_in_partial_batches("send")
        slots = slots_of(env_id)
        self._partial.check(slots)
        self._partial.send(slots, self._envs.by_row(actions, len(slots)))

    # Policies on workers.

    @timed
    def publish(self, policy: Any) -> int:
        """Make the weights of ``policy`` available to the hosts; no bytes move yet.

        ``policy`` is one of :mod:`clusterenv.policies`, or a ``torch.nn.Module`` that returns a
        ``torch.distributions`` object. May be called from another thread, and while a
        :meth:`stream` is open. Returns the version; weights that are bit-equal to the newest ones
        do not make a new version.
        """
        return self._policies.publish(policy)

    @user_call
    def rollout(
        self,
        policy: Any,
        num_steps: int,
        *,
        wait_num: int | None = None,
        patience_s: float = 0.0,
        infos: bool = True,
        ahead: int = 0,
    ) -> Rollout:
        """Publish ``policy``, let it act on the workers, and collect [T, N] from every slot.

        Args:
            policy: As :meth:`publish` takes it.
            num_steps: T, the steps of each slot.
            wait_num: Return once this many slots have finished. Only these are columns then, as
                ``rollout.slots`` says, and the others come with a later rollout. By default all.
            patience_s: How long to wait for the others once ``wait_num`` slots have finished.
            infos: Whether to collect ``rollout.infos``; False saves bytes where envs report much.
            ahead: 1 collects the next rollout while you learn from this one, with the version that
                this call publishes. The next call returns it if policy object and ``num_steps`` are
                the same; otherwise, or at a reset, it is dropped, and ``ledger.dropped_steps``
                counts its steps. ``evaluate`` and ``call`` wait for it; before ``step``, reset.
        """
        return self._policies.rollout(policy, num_steps, wait_num, patience_s, infos, ahead)

    @user_call
    def stream(
        self, num_steps: int, in_flight: int = 2, *, infos: bool = True
    ) -> Iterator[Fragment]:
        """Fragments as they finish, each of some slots, while the learner trains.

        A slot has at most ``in_flight`` fragments under way or waiting to be read, so that
        memory and lag stay bounded when the learner is slower. Leaving the loop stops collection.
        """
        return self._policies.stream(num_steps, in_flight, infos, self._stopwatch)

    @user_call
    def evaluate(
        self,
        policy: Any,
        episodes: int,
        *,
        deterministic: bool = True,
        seed: int = 0,
        wrappers: Sequence[EnvWrapper] | None = None,
    ) -> Episodes:
        """Play whole episodes with ``policy`` on the workers, in envs of their own.

        Training is not disturbed: the envs that :meth:`rollout` uses stay where they are. Each
        slot plays its share, so that short episodes are not favoured. ``wrappers`` replace those
        of training, which may change rewards; by default they are the same.
        """
        return self._policies.evaluate(policy, episodes, deterministic, seed, wrappers)

    @property
    def version(self) -> int:
        """The newest published version; 0 before the first."""
        return self._policies.version

    @property
    def num_workers(self) -> int:
        """How many workers there are, on all hosts together."""
        return len(self.workers)

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        """The workers as they are now, in the order of their slots."""
        return self._session.workers

    @property
    def run_id(self) -> str:
        """The name of the run: ``python -m clusterenv top`` accepts it, or its beginning."""
        return self._session.run_id

    def profile(self) -> Profiler:
        """Count where the time goes, at the head and on the workers.

        Example: ``with envs.profile() as profile: train(envs)``, and then ``print(profile)``.
        """
        self._calls.assert_may_begin("profile")
        return Profiler(self._session)

    @property
    def ledger(self) -> Ledger:
        """What has moved between head and hosts so far."""
        return self._ledger

    # Everything else that Gymnasium's vector envs can do.

    @user_call
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    @user_call
    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call; :meth:`call_wait` gets its results."""
        self._envs.start_call(name, args, kwargs)

    @user_call
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of :meth:`call_async`, one per slot."""
        return self._envs.finish_call(timeout)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    @user_call
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: one value per slot if a list or tuple, else one for all."""
        self._envs.set_attr(name, values)

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
