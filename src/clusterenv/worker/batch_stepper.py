"""Steps an engine that returns whichever envs are ready first, in batches of its own size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from clusterenv.arrays import Array
from clusterenv.plain.batched_infos import BatchedInfos, as_tree, take_rows
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.worker.rows import Outcome
from clusterenv.worker.stepper import UserCodeError
from clusterenv.worker.vector_stepper import AnyVectorEnv, with_slots

_PATIENCE_S = 0.02
_LONGEST_PATIENCE_S = 1.0
_ANSWERED = 0
"""Stands for the request of an env that is not under way."""
Answer = tuple[int, tuple[int, ...], Outcome]
"""A request, those of its slots that are ready (ascending), and their rows."""


class EngineBatches(Protocol):
    """An engine after ``begin_batches``."""

    batch_size: int
    num_under_way: int
    is_full: bool
    """Whether enough envs are under way for a batch."""

    def reset(self, envs: Array) -> None:
        """Start a reset of these envs."""

    def send(self, actions: Any, envs: Array) -> None:
        """Start a step of these envs."""

    def receive(self) -> tuple[Array, Any, Array, Array, Array, dict[str, Any]]:
        """Wait for the first envs that are ready: their numbers and rows."""


class BatchPatience:
    """Decides when to wait for envs, and when for actions.

    A worker that waits for its envs cannot pass on actions, and envs that wait for actions do
    nothing. So it waits for envs at once only while fewer rows than ``allowed`` are out, without
    an action: one batch at first. With more it waits for actions; if none come for a while, more
    rows are allowed.
    """

    def __init__(self, batch_size: int, num_envs: int) -> None:
        self._batch_size, self._num_envs = batch_size, num_envs
        self._allowed, self._patience_s = batch_size, _PATIENCE_S
        self.num_out = 0
        """How many rows were handed out and have not been answered with an action."""

    def patience_s(self, is_full: bool) -> float:
        """How long to wait for actions before waiting for envs."""
        return 0.0 if is_full and self.num_out < self._allowed else self._patience_s

    def received(self, count: int, has_mail: bool) -> None:
        """Note rows that were handed out; ``has_mail`` if actions came while waiting for them."""
        was_ahead = self.num_out >= self._allowed
        self.num_out += count
        if was_ahead and has_mail:
            self._allowed = max(self._batch_size, self._allowed - self._batch_size)
            self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
        elif was_ahead:
            self._allowed = min(self._allowed + self._batch_size, self._num_envs)


class BatchStepper:
    """Between ``begin`` and ``end``, sends resets and steps, and returns rows as they are ready.

    Args:
        env: A VectorEnv with ``begin_batches``.
        slots: The worker's slots.
    """

    def __init__(self, env: AnyVectorEnv, slots: Sequence[int]) -> None:
        self._env: Any = env
        self._numbers = np.array(slots, np.int64)
        self._space, self._leaves = (
            env.single_observation_space,
            leaves_of(env.single_observation_space),
        )
        self._engine: EngineBatches | None = None
        self._patience = BatchPatience(1, 1)
        self._request_of = np.full(len(slots), _ANSWERED, np.int64)
        self._told_rewards = ""

    @property
    def is_running(self) -> bool:
        """Whether steps should be sent here."""
        return self._engine is not None

    def end(self) -> None:
        """Let the engine step all its envs together from now on."""
        self._engine = None

    def wait_s(self) -> float | None:
        """How long to wait for mail before :meth:`receive`; None while no env is under way."""
        if self._engine is None or not self._engine.num_under_way:
            return None
        return self._patience.patience_s(self._engine.is_full)

    def reset(self, request: int, slots: Sequence[int], seeds: Sequence[int | None]) -> None:
        """Start a reset of these slots."""
        envs = self._envs_of(slots)
        try:
            engine = self._env.begin_batches(seeds, envs)
        except Exception as error:
            raise UserCodeError(None) from error
        if self._engine is None or len(envs) == len(self._numbers):
            self._patience = BatchPatience(engine.batch_size, len(self._numbers))
            self._told_rewards = ""
        self._engine = engine
        self._note(request, envs)

    def send(self, request: int, slots: Sequence[int], actions: Any) -> None:
        """Start a step of these slots."""
        assert self._engine is not None
        envs = self._envs_of(slots)
        try:
            self._engine.send(actions, envs)
        except Exception as error:
            raise UserCodeError(None, actions) from error
        self._note(request, envs)

    def _envs_of(self, slots: Sequence[int]) -> Array:
        return np.searchsorted(self._numbers, np.asarray(slots))

    def _note(self, request: int, envs: Array) -> None:
        self._request_of[envs] = request
        self._patience.num_out = max(0, self._patience.num_out - len(envs))

    def receive(self) -> tuple[Array, Outcome]:
        """Wait for the first envs that are ready: their numbers (ascending) and rows."""
        assert self._engine is not None
        try:
            envs, observations, rewards, terminated, truncated, infos = self._engine.receive()
            order = np.argsort(envs)
            tree = with_slots(as_tree(infos, len(envs)), self._numbers)
        except Exception as error:
            raise UserCodeError(None) from error
        columns = [leaf.of(observations)[order] for leaf in self._leaves]
        outcome = Outcome(
            join_leaves(self._space, columns),
            rewards[order],
            terminated[order],
            truncated[order],
            BatchedInfos(self._numbers[envs[order]], take_rows(tree, order), self._news(rewards)),
            batched=True,
        )
        return envs[order], outcome

    def _news(self, rewards: Array) -> str:
        """The dtype of the rewards, if it was not sent yet."""
        told, self._told_rewards = self._told_rewards, str(rewards.dtype.str)
        return "" if told == self._told_rewards else self._told_rewards

    def answers(self, envs: Array, outcome: Outcome, has_mail: bool) -> Iterator[Answer]:
        """The rows by the request they answer; ``has_mail`` if there was mail when they came."""
        self._patience.received(len(envs), has_mail)
        requests = self._request_of[envs]
        self._request_of[envs] = _ANSWERED
        for request in np.unique(requests).tolist():
            rows = np.flatnonzero(requests == request)
            some = outcome if len(rows) == len(envs) else self._part(outcome, rows)
            yield request, tuple(self._numbers[envs[rows]].tolist()), some

    def _part(self, outcome: Outcome, rows: Array) -> Outcome:
        columns = [leaf.of(outcome.observations)[rows] for leaf in self._leaves]
        assert isinstance(outcome.infos, BatchedInfos)
        return Outcome(
            join_leaves(self._space, columns),
            np.asarray(outcome.rewards)[rows],
            np.asarray(outcome.terminated)[rows],
            np.asarray(outcome.truncated)[rows],
            outcome.infos.part(rows),
            batched=True,
        )

    @property
    def oldest_request(self) -> int:
        """The oldest request under way; 0 if there is none."""
        under_way = self._request_of[self._request_of != _ANSWERED]
        return int(under_way.min()) if under_way.size else _ANSWERED
