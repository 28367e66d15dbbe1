"""The episodes that have ended, for anyone watching the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.arrays import Array
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.status.run_status import EpisodeSummary

_KEPT = 100


class EpisodeLog:
    """The last episodes, with their returns and lengths.

    In rollouts and streams the workers count them anyway. The rows of steps are added up only
    while ``is_watched``, so a run that nobody watches does no work for this. The return of a slot
    in the middle of an episode is then NaN until the next episode begins.

    Args:
        num_envs: How many slots there are.
        mode: What happens after an episode's end.
        now_s: The time since the run began.
    """

    def __init__(
        self,
        num_envs: int,
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        now_s: Callable[[], float] = float,
    ) -> None:
        self.is_watched = False
        self.count = 0
        """How many have ended so far; in steps, only while the run was watched."""
        self._now_s = now_s
        # When some ended, and their slots, returns and lengths. Objects are made only when somebody
        # looks, since many short episodes may end at every step.
        self._recent: deque[tuple[float, Array, Array, Array]] = deque(maxlen=_KEPT)
        self._returns = np.full(num_envs, np.nan)
        self._lengths = np.zeros(num_envs, np.int64)
        # In NEXT_STEP mode the row after an episode's last one is a reset's, and not a step.
        self._length_at_start = -1 if mode is AutoresetMode.NEXT_STEP else 0

    def watch(self, is_watched: bool) -> None:
        """Start or stop watching. May be called by any thread."""
        if is_watched and not self.is_watched:
            self._returns[:] = np.nan
        self.is_watched = is_watched

    @property
    def recent(self) -> tuple[EpisodeSummary, ...]:
        """The last ones, in the order in which they ended."""
        summaries = [
            EpisodeSummary(time_s, slot, total, length)
            for time_s, *columns in tuple(self._recent)
            for slot, total, length in zip(*(c.tolist() for c in columns), strict=True)
            if math.isfinite(total)
        ]
        return tuple(summaries[-_KEPT:])

    def note_reset(self, slots: Sequence[int], has_row: bool) -> None:
        """Note that these slots start over; ``has_row`` if the reset's own row will be noted."""
        if not self.is_watched:
            return
        rows = list(slots)
        self._returns[rows] = 0.0
        self._lengths[rows] = -1 if has_row else 0

    def forget(self, slots: Sequence[int]) -> None:
        """Forget the returns of these slots so far, which are unknown from now on."""
        self._returns[list(slots)] = np.nan

    def note_rows(
        self, rewards: Array, terminated: Array, truncated: Array, some: Sequence[int] | None = None
    ) -> None:
        """A step was taken in all slots, or in ``some``; the arrays have a row for every slot."""
        ended = terminated | truncated
        # Rewards are the user's: infinite ones are no reason for a warning here.
        with np.errstate(invalid="ignore"):
            if some is None:
                self._returns += rewards
                self._lengths += 1
            else:
                rows = np.asarray(some)
                self._returns[rows] += rewards[rows]
                self._lengths[rows] += 1
                ended = _only(rows, ended)
        if ended.any():
            slots = np.flatnonzero(ended)
            self._add(slots, self._returns[slots], self._lengths[slots])
            self._returns[slots], self._lengths[slots] = 0.0, self._length_at_start

    def note_fragment(self, part: FragmentPart) -> None:
        """Note what a policy did in some slots."""
        if self.is_watched:
            # Later steps continue episodes whose beginnings were not noted here.
            self.forget(part.slots)
        returns = part.arrays.get("finals/returns")
        if returns is not None and len(returns):
            slots, lengths = part.arrays["finals/slots"], part.arrays["finals/lengths"]
            # Their memory will be reused.
            self._add(*(array[-_KEPT:].copy() for array in (slots, returns, lengths)))
            self.count += max(0, len(returns) - _KEPT)

    def _add(self, slots: Array, returns: Array, lengths: Array) -> None:
        self.count += int(np.count_nonzero(np.isfinite(returns)))
        self._recent.append((self._now_s(), slots, returns, lengths))


def _only(rows: Array, flags: Array) -> Array:
    """The flags of these rows, and False in all others."""
    chosen = np.zeros_like(flags)
    chosen[rows] = flags[rows]
    return chosen
