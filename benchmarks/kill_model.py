"""What a user may see of slots whose processes are killed: the model that judges every row."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import inside
import numpy as np
from kill_world import Position, shifted

from clusterenv import ClusterEnv
from clusterenv.head.recovery import restart_seed

_PATIENCE_S = 20.0
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class WrongRowError(Exception):
    """A row was lost, doubled, misplaced or impossible."""


class Model:
    """Where each slot was last, and what may come next.

    Args:
        envs: Whose slots they are.
        may_move: Whether slots may start over elsewhere although their process is still there.
    """

    def __init__(self, envs: ClusterEnv, may_move: bool) -> None:
        self._envs, self._may_move = envs, may_move
        self._seen: dict[int, Position] = {}
        self._over: set[int] = set()
        self._seed = 0
        self._starts = [0] * envs.num_envs
        """How often each slot has started over, as far as the rows show."""
        self.rows = 0

    def note_reset(self, seed: int) -> None:
        """All slots are being reset: what follows is judged as their first rows."""
        self._seed = seed
        self._over.clear()

    def judge_reset(self, slots: Iterable[int], observations: Any) -> None:
        """Rows that answer a reset."""
        for row, slot in enumerate(slots):
            at, before = self._read(slot, observations[row]), self._seen.get(slot)
            is_new = before is None or at.born > before.born
            if not is_new and (at.born, at.pid) != (before.born, before.pid):
                raise WrongRowError(f"slot {slot} was reset, and goes back from {before} to {at}")
            if at.step or not (is_new or at.episode > before.episode):
                raise WrongRowError(f"slot {slot} was reset, and went from {before} to {at}")
            if at.seed != self._seed + slot:
                self._note_start(at)
            self._go_to(at)

    def steps(self) -> list[int]:
        """At which step of its episode each slot is."""
        return [self._seen[slot].step for slot in range(self._envs.num_envs)]

    def judge_step(self, slots: Iterable[int], actions: Any, step: Any) -> None:
        """Rows that answer steps with these actions, as `step` or `recv` gave them."""
        observations, rewards, terminated, truncated, infos = step
        lost = infos.get("env_lost", np.zeros(len(rewards), np.bool_))
        said, was_said = infos.get("at"), infos.get("_at")
        for row, slot in enumerate(slots):
            at = self._read(slot, observations[row])
            flags = bool(terminated[row]), bool(truncated[row])
            if lost[row]:
                self._judge_loss(at, float(rewards[row]), flags)
                continue
            self._judge_row(at, int(actions[row]), float(rewards[row]), flags)
            says = int(said[row]) if said is not None and was_said[row] else None
            if says != (at.step if at.step and at.step % 3 == 0 else None):
                raise WrongRowError(f"slot {slot} is at {at}, and its info says {says}")

    def _judge_loss(self, at: Position, reward: float, flags: tuple[bool, bool]) -> None:
        before = self._seen[at.slot]
        if at.slot in self._over:
            raise WrongRowError(f"slot {at.slot} is reported as lost twice, at {before}")
        if at != before or reward or flags != (False, True):
            raise WrongRowError(f"slot {at.slot} was lost at {before}, shows {at} {reward} {flags}")
        self._check_is_gone(before)
        self._over.add(at.slot)
        self.rows += 1

    def _judge_row(
        self, at: Position, action: int, reward: float, flags: tuple[bool, bool]
    ) -> None:
        before = self._seen[at.slot]
        if at.slot in self._over:
            self._judge_start(before, at)
            self._over.discard(at.slot)
            expected = at, 0.0
        elif before.is_last:
            expected = before.next_episode(), 0.0
        else:
            expected = before.after(), before.after().reward(action)
        if (at, reward) != expected or flags != (at.is_last and at.step > 0, False):
            raise WrongRowError(
                f"slot {at.slot} went from {before} to {at}, reward {reward} for {action}, {flags}"
            )
        self._go_to(at)

    def judge_fragment(
        self, fragment: Any, shift_of: Callable[[int], int], is_gapless: bool
    ) -> None:
        """Every row of a fragment or rollout, and that its columns go on where their slots were.

        Args:
            fragment: What `rollout` or `stream` gave.
            shift_of: The weight of each version.
            is_gapless: Whether nothing of these slots can have been dropped since the last one.
        """
        ends = {
            (int(step), int(column)): (observation, int(length))
            for step, column, observation, length in zip(
                fragment.finals.steps,
                fragment.finals.columns,
                fragment.finals.observations,
                fragment.episodes.lengths,
                strict=True,
            )
        }
        for column, slot in enumerate(fragment.slots.tolist()):
            path = [self._read(slot, row) for row in fragment.observations[:, column]]
            self._judge_begin(path[0], is_gapless)
            shifts = [shift_of(int(version)) for version in fragment.versions[:, column]]
            wanted = shifted([at.step for at in path[:-1]], shifts)
            if not np.array_equal(fragment.actions[:, column], wanted):
                raise WrongRowError(f"slot {slot} has actions of other weights at {path[0]}")
            for step, action in enumerate(wanted.tolist()):
                end = ends.pop((step, column), None)
                row = fragment.rewards[step, column], fragment.terminated[step, column], end
                self._judge_transition(path[step], path[step + 1], action, *row)
            self._go_to(path[-1], len(path) - 1)
        if ends or fragment.truncated.any():
            raise WrongRowError(f"ends that belong to nothing: {ends}, {fragment.truncated.any()}")

    def _judge_begin(self, at: Position, is_gapless: bool) -> None:
        before = self._seen[at.slot]
        if at == before:
            return
        if at.born == before.born and not is_gapless and at > before:
            return
        if at.born == before.born or at.born < before.born:
            raise WrongRowError(f"slot {at.slot} jumps from {before} to {at}")
        self._check_is_gone(before)
        if is_gapless:
            self._judge_start(before, at)

    def _judge_transition(
        self, at: Position, then: Position, action: int, reward: Any, ended: Any, end: Any
    ) -> None:
        reached = at.after()
        expected = reached.next_episode() if reached.is_last else reached
        is_right = then == expected and float(reward) == reached.reward(action)
        if not is_right or bool(ended) != reached.is_last or (end is None) == reached.is_last:
            raise WrongRowError(
                f"slot {at.slot} went from {at} to {then} by {action}, {reward}, {ended}, {end}"
            )
        if end is not None:
            last, length = end
            if self._read(at.slot, last) != reached or length != reached.step:
                raise WrongRowError(f"slot {at.slot} ended at {reached}, and its end says {end}")

    def _judge_start(self, before: Position, at: Position) -> None:
        """A slot that was lost starts over, in another env."""
        if at.born <= before.born or at.episode != 1 or at.step:
            raise WrongRowError(f"slot {at.slot} started over after {before} at {at}")
        self._note_start(at)

    def _note_start(self, at: Position) -> None:
        """Its seed must be one that a slot may start over with, and that was not used before."""
        newest = inside.times_restarted(self._envs, at.slot)
        for start in range(self._starts[at.slot] + 1, newest + 1):
            if restart_seed(self._seed, at.slot, start) == at.seed:
                self._starts[at.slot] = start
                return
        raise WrongRowError(f"slot {at.slot} started over at {at}: nobody chose that seed")

    def _check_is_gone(self, at: Position) -> None:
        # A worker whose host was killed notices that itself, soon.
        deadline = time.monotonic() + _PATIENCE_S
        while not self._may_move and is_running(at.pid, at.born):
            if time.monotonic() > deadline:
                raise WrongRowError(f"slot {at.slot} counts as lost at {at}, and its process runs")
            time.sleep(0.01)

    def _read(self, slot: int, row: Any) -> Position:
        at = Position(*map(int, row))
        if at.slot != slot:
            raise WrongRowError(f"slot {slot} shows what slot {at.slot} did: {at}")
        return at

    def _go_to(self, at: Position, rows: int = 1) -> None:
        self._seen[at.slot] = at
        self.rows += rows


def is_running(pid: int, since: int) -> bool:
    """Whether the process with this number that was there at ``since`` is there still."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    # Numbers are used again: then it was started later.
    return state not in "ZX" and int(fields[18]) * _TICK_NS <= since
