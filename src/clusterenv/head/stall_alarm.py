"""Notices training that has frozen because nobody pulls: the divergence is flat, the lag grows."""

from __future__ import annotations

import numpy as np

_WINDOW = 8
# Further behind than any sensible max_lag lets a worker fall.
_MEASUREMENTS = 3 * _WINDOW
_GROWTH = 1.1


class StallAlarm:
    """Looks at what was measured. Decides; says nothing twice."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._divergences: dict[int, list[float]] = {}
        self._has_rung = False

    def note(self, place: int, held: int, divergence: float) -> bool:
        """Whether this is the first sign that training has frozen."""
        if self._held.get(place) != held:
            self._held[place], self._divergences[place] = held, []
        seen = self._divergences[place]
        seen.append(divergence)
        if self._has_rung or len(seen) < _MEASUREMENTS:
            return False
        before, now = np.mean(seen[-2 * _WINDOW : -_WINDOW]), np.mean(seen[-_WINDOW:])
        self._has_rung = bool(now > 0 and now <= _GROWTH * before)
        return self._has_rung
