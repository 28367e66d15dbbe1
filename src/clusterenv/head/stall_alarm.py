"""Notices training that has frozen because nobody pulls: the divergence is flat, the lag grows."""

from __future__ import annotations

from collections import deque

import numpy as np

_WINDOW = 8
# Further behind than any sensible max_lag lets a host fall.
_MEASUREMENTS = 3 * _WINDOW
_GROWTH = 1.1


class StallAlarm:
    """Looks at what was measured. Decides; says nothing twice."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._divergences: dict[str, deque[float]] = {}
        self._has_rung = False

    def note(self, host: str, held: int, divergence: float) -> bool:
        """Whether this is the first sign that training has frozen."""
        if self._held.get(host) != held:
            self._held[host] = held
            self._divergences[host] = deque(maxlen=_MEASUREMENTS)
        seen = self._divergences[host]
        seen.append(divergence)
        if self._has_rung or len(seen) < _MEASUREMENTS:
            return False
        _, before, now = np.reshape(seen, (3, _WINDOW)).mean(axis=1)
        self._has_rung = bool(now > 0 and now <= _GROWTH * before)
        return self._has_rung
