"""Notices training frozen because no host pulls: the divergence is flat while the lag grows."""

from __future__ import annotations

from collections import deque

import numpy as np

_WINDOW = 8
# Further behind than a host can fall with any sensible max_lag.
_MEASUREMENTS = 3 * _WINDOW
_GROWTH = 1.1


class StallAlarm:
    """Judges measurements, and raises the alarm only once. Pure decisions."""

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
