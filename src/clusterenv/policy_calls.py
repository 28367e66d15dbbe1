"""Rollouts, streams and evaluations as the user calls them: checks, order, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any, TypeVar

import numpy as np

from clusterenv.calls import Call, Calls
from clusterenv.construction import AsPolicy
from clusterenv.head.collecting import Collecting
from clusterenv.head.session import Session
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.rollout import Episodes, Fragment, Rollout, assemble, episodes_by_slot
from clusterenv.stopwatch import HEAD, LEARNER, Stopwatch

_AnyFragment = TypeVar("_AnyFragment", bound=Fragment)


class PolicyCalls:
    """What :class:`clusterenv.ClusterEnv` does with policies."""

    def __init__(self, session: Session, collecting: Collecting, calls: Calls) -> None:
        self._session, self._collecting, self._calls = session, collecting, calls
        self._as_policy = AsPolicy()

    def publish(self, policy: Any) -> int:
        """Make its weights available; the version."""
        version = self._session.publisher.publish(self._as_policy(policy))
        streams = self._calls.pending is Call.STREAM
        self._session.drift.measure(sparingly=streams)
        if streams:
            self._collecting.announce()
        return version

    def assert_can_collect(self, method: str, num_steps: int) -> None:
        """Raise if a policy cannot act now, or not for so long."""
        self._calls.assert_nothing_pending(method)
        self._calls.assert_can_collect(method)
        if index(num_steps) < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1")

    def rollout(
        self, policy: Any, num_steps: int, wait_num: int | None, patience_s: float
    ) -> Rollout:
        """Publish, and collect [T, N]."""
        num_envs = self._session.num_envs
        wait_num = num_envs if wait_num is None else index(wait_num)
        if not 1 <= wait_num <= num_envs:
            raise ValueError(f"wait_num={wait_num} must be between 1 and num_envs={num_envs}")
        self.publish(policy)
        with self._calls.finishing(Call.ROLLOUT):
            self._collecting.collect(index(num_steps), together=wait_num == num_envs)
            parts = self._collecting.wait_for(wait_num, patience_s)
        return self._assemble(Rollout, parts)

    def stream(self, num_steps: int, in_flight: int, watch: Stopwatch) -> Iterator[Fragment]:
        """Fragments as they finish."""
        if index(in_flight) < 1:
            raise ValueError(f"in_flight={in_flight} must be at least 1")
        if self._session.publisher.version == 0:
            raise ValueError("stream() needs a policy: call publish(policy) first")
        self._calls.pending = Call.STREAM
        stream = self._stream(index(num_steps), index(in_flight), watch)
        # Begun here: closing a generator that was never begun would not run its `finally`.
        next(stream)
        return stream

    def _stream(self, num_steps: int, in_flight: int, watch: Stopwatch) -> Iterator[Any]:
        try:
            yield None
            if watch.is_on:
                watch.begin(HEAD)
            for part in self._collecting.stream(num_steps, in_flight):
                fragment = self._assemble(Fragment, [part])
                if watch.is_on:
                    watch.begin(LEARNER)
                yield fragment
                if watch.is_on:
                    watch.begin(HEAD)
                self._calls.assert_is_running(self._session.is_closed)
        except Exception:
            # A fragment that failed halfway leaves its envs nobody knows where.
            self._calls.has_reset = False
            raise
        finally:
            self._calls.pending = Call.NOTHING
            if watch.is_on:
                watch.begin(LEARNER)

    def evaluate(self, policy: Any, episodes: int, deterministic: bool, seed: int) -> Episodes:
        """Play whole episodes in envs of their own."""
        self._calls.assert_nothing_pending("evaluate")
        episodes, seed = index(episodes), index(seed)
        if episodes < 1:
            raise ValueError(f"episodes={episodes} must be at least 1")
        self.publish(policy)
        # Spread over all slots, and so over all workers.
        num_envs = self._session.num_envs
        slots = np.arange(episodes) * num_envs // episodes
        shares = np.bincount(slots, minlength=num_envs).tolist()
        self._collecting.evaluate(shares, seed, deterministic)
        self._calls.pending = Call.CALL
        self._calls.wait(Call.CALL, None)
        return episodes_by_slot(self._session.take_values())

    def _assemble(self, kind: type[_AnyFragment], parts: list[FragmentPart]) -> _AnyFragment:
        agreed = self._session.agreed
        return assemble(kind, parts, agreed.observation_space, agreed.action_space)
