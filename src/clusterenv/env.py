"""ClusterEnv: partial batches and policies here, Gymnasium's own calls in its base class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from clusterenv.agreement import agree_on_spaces
from clusterenv.arguments import Seed, slots_of
from clusterenv.backends.base import Backend
from clusterenv.backends.gymnasium import EnvFactory, EnvWrapper
from clusterenv.call_state import Call
from clusterenv.construction import (
    choose_backend,
    choose_launcher,
    choose_min_workers,
    choose_num_workers,
    choose_sync_rule,
    wrap_module,
)
from clusterenv.head import profiler
from clusterenv.head.head import Head
from clusterenv.head.profiler import Profiler
from clusterenv.head.roster import Roster
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.partial_batches import PartialBatches
from clusterenv.policies.base import Policy
from clusterenv.policies.encoding import Encoding, check_encoding
from clusterenv.rollout import (
    Episodes,
    Fragment,
    FragmentPart,
    Rollout,
    assemble,
    episodes_by_slot,
)
from clusterenv.sync import SyncRule
from clusterenv.sync.ledger import Ledger
from clusterenv.vector_env import RemoteVectorEnv, StepResult
from clusterenv.wire.addresses import Network

_AnyFragment = TypeVar("_AnyFragment", bound=Fragment)


class ClusterEnv(RemoteVectorEnv):
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
            which the next call overwrites; they are not to be written to.
        observation_mode: ``"same"``, ``"different"`` or ``(batched space, single space)``, as in
            :class:`gymnasium.vector.AsyncVectorEnv`.
        autoreset_mode: When an env whose episode has ended is reset, as in Gymnasium.
        batch_size: How many slots :meth:`recv` returns. By default all of them.
        sync: When workers pull newly published weights; by default at every version.
        encoding: How weights travel: ``"raw"``; ``"bf16"``, which halves them and rounds what
            acts; or ``"delta"``, the difference to what a worker has, rounded likewise.
        trust_workers: Let remote workers send pickled objects. Workers of this machine that this
            process started may do so anyway.
        limits: Time-outs and the restart budget; by default those of :class:`~clusterenv.Limits`.
        network: Where the head listens and what workers connect to; by default the interface that
            leads to them, and a free port.
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
        limits: Limits | None = None,
        network: Network | None = None,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        backend, num_envs, self.spec = choose_backend(env, num_envs, wrappers, kwargs)
        launcher = choose_launcher(launcher)
        self.num_workers = choose_num_workers(num_workers, num_envs, launcher)
        self._workers_are_here = launcher.spawns_here
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.observation_mode = observation_mode
        self.shared_memory = shared_memory
        check_encoding(encoding)
        self.batch_size = num_envs if batch_size is None else batch_size
        if not 1 <= self.batch_size <= num_envs:
            raise ValueError(f"batch_size={batch_size} must be between 1 and num_envs={num_envs}")
        head = Head(
            backend,
            num_envs,
            self.num_workers,
            launcher,
            self.autoreset_mode,
            shared_memory,
            trust_workers or launcher.spawns_here,
            choose_sync_rule(sync),
            encoding,
            limits or Limits(),
            network or Network(),
            choose_min_workers(min_workers, self.num_workers),
            balance,
        )
        super().__init__(head, copy)
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
        if (leaf := self._head.action_leaf) is not None:
            self._action_dtype, self._action_shape = leaf.dtype, (self.num_envs, *leaf.shape)
        self._partial = PartialBatches(self._head, self.batch_size, agreed.steps_together)

    # Step.

    def _step_with_checks(self, actions: Any) -> StepResult:
        return (
            self._step_with(actions) if _is_policy(actions) else super()._step_with_checks(actions)
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
        self._assert_in_partial_batches("recv")
        self._partial.assert_enough_under_way()
        try:
            slots = self._partial.receive()
        except BaseException:
            # Nobody knows which slots would still come: start anew with async_reset.
            self._head.abandon()
            self._state.pending, self._state.has_reset = Call.NOTHING, False
            raise
        return self._head.batch.results_of(slots)

    def send(self, actions: Any, env_id: Any) -> None:
        """Step the slots ``env_id`` with ``actions``, for a later :meth:`recv` to return."""
        self._assert_in_partial_batches("send")
        slots = slots_of(env_id)
        self._partial.check(slots)
        self._partial.send(slots, self._by_row(actions, len(slots)))

    def _assert_in_partial_batches(self, method: str) -> None:
        self._assert_is_running()
        if self._state.pending is not Call.PARTIAL_BATCHES:
            raise ResetNeeded(f"Cannot call `{method}` before calling `async_reset`")

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
            raise ValueError(f"wait_num={wait_num} must be between 1 and num_envs={self.num_envs}")
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


def _is_policy(actions: Any) -> bool:
    return hasattr(actions, "act") or hasattr(actions, "state_dict")
