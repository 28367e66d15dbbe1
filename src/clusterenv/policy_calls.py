"""Rollouts, streams and evaluations as the user calls them: checks, order, and results."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, TypeVar

import numpy as np

from clusterenv.as_policy import AsPolicy
from clusterenv.backends.base import Backend
from clusterenv.calls import Calls, PendingCall
from clusterenv.construction import with_wrappers
from clusterenv.counts import check_count, check_part
from clusterenv.env_calls import EnvCalls
from clusterenv.head.session import Session
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.rollout import Episodes, Fragment, Rollout, assemble, episodes_by_slot
from clusterenv.stopwatch import HEAD, LEARNER, Stopwatch

_AnyFragment = TypeVar("_AnyFragment", bound=Fragment)


class PolicyCalls:
    """What :class:`clusterenv.ClusterEnv` does with policies."""

    def __init__(self, session: Session, calls: Calls, envs: EnvCalls, backend: Backend) -> None:
        self._session, self._collecting = session, calls.collecting
        self._publisher, self._drift = session.publisher, session.drift
        self._calls, self._envs, self._backend = calls, envs, backend
        self._as_policy = AsPolicy()

    def publish(self, policy: Any) -> int:
        """Make its weights available; returns the version."""
        self._calls.assert_is_running()
        version = self._publisher.publish(self._as_policy(policy))
        streams = self._calls.pending is PendingCall.STREAM
        self._drift.measure(sparingly=streams)
        if streams:
            self._collecting.announce()
        return version

    @property
    def version(self) -> int:
        """The newest published version; 0 before the first."""
        return self._publisher.version

    def start_step(self, policy: Any) -> None:
        """Publish the policy, and start a step of all slots with it."""
        self._calls.assert_may_begin("step")
        self._calls.assert_has_reset("step")
        self.publish(policy)
        self._session.act()
        self._calls.begin(PendingCall.STEP)

    def _begin_collecting(self, method: str, num_steps: int) -> None:
        """Raise if a policy cannot act now, or ``num_steps`` is wrong; reset envs that need it."""
        self._calls.assert_may_begin(method)
        self._calls.assert_can_collect(method)
        check_count("num_steps", num_steps)
        if not self._calls.has_reset:
            self._envs.reset()

    def rollout(
        self,
        policy: Any,
        num_steps: int,
        wait_num: int | None,
        patience_s: float,
        infos: bool,
        ahead: int,
    ) -> Rollout:
        """Publish the policy and collect [T, N]; with ``ahead``, also begin the next rollout."""
        self._begin_collecting("rollout", num_steps)
        if ahead not in (0, 1):
            raise ValueError(
                f"ahead={ahead!r} must be 0 or 1: one rollout is collected ahead at most; "
                "`stream` keeps more fragments under way"
            )
        num_envs = self._session.num_envs
        if wait_num is None:
            wait_num = num_envs
        wait_num = check_part("wait_num", wait_num, num_envs, f"num_envs={num_envs}")
        self.publish(policy)
        with self._calls.finishing(PendingCall.ROLLOUT):
            together = wait_num == num_envs
            self._collecting.collect(index(num_steps), together, bool(infos), bool(ahead))
            parts = self._collecting.wait_for(wait_num, patience_s)
        return self._assemble(Rollout, parts)

    def stream(
        self, num_steps: int, in_flight: int, infos: bool, watch: Stopwatch
    ) -> Iterator[Fragment]:
        """Fragments as they finish."""
        self._begin_collecting("stream", num_steps)
        check_count("in_flight", in_flight)
        if self._publisher.version == 0:
            raise ValueError("stream() needs a policy: call publish(policy) first")
        self._calls.begin(PendingCall.STREAM)
        stream = self._stream(index(num_steps), index(in_flight), bool(infos), watch)
        # Begun here: closing a generator that never began would not run its `finally`.
        next(stream)
        return stream

    def _stream(
        self, num_steps: int, in_flight: int, infos: bool, watch: Stopwatch
    ) -> Iterator[Any]:
        try:
            yield None
            if watch.is_on:
                watch.begin(HEAD)
            for part in self._collecting.stream(num_steps, in_flight, infos):
                fragment = self._assemble(Fragment, [part])
                if watch.is_on:
                    watch.begin(LEARNER)
                yield fragment
                if watch.is_on:
                    watch.begin(HEAD)
                self._calls.assert_is_running()
        except Exception:
            # After a fragment that failed halfway, the state of its envs is unknown.
            self._calls.lose_track(PendingCall.STREAM)
            raise
        finally:
            self._calls.pending = PendingCall.NOTHING
            if watch.is_on:
                watch.begin(LEARNER)

    def evaluate(
        self, policy: Any, episodes: int, deterministic: bool, seed: int, wrappers: Any
    ) -> Episodes:
        """Play whole episodes in envs of their own, with other ``wrappers`` unless None."""
        self._calls.assert_may_begin("evaluate")
        episodes, seed = check_count("episodes", episodes), check_count("seed", seed, least=0)
        backend = None if wrappers is None else with_wrappers(self._backend, wrappers)
        before = self._publisher.newest
        version = self.publish(policy)
        # Spread over all slots, and so over all workers.
        num_envs = self._session.num_envs
        slots = np.arange(episodes) * num_envs // episodes
        shares = np.bincount(slots, minlength=num_envs).tolist()
        try:
            self._collecting.evaluate(shares, seed, deterministic, backend)
            self._calls.begin(PendingCall.CALL)
            self._calls.wait(PendingCall.CALL, None)
            return episodes_by_slot(self._session.take_values())
        finally:
            self._publisher.take_back(version, before)

    def _assemble(self, kind: type[_AnyFragment], parts: list[FragmentPart]) -> _AnyFragment:
        agreed = self._session.agreed
        spaces = agreed.observation_space, agreed.action_space
        return assemble(kind, parts, *spaces, agreed.trusted)
