"""Ratios of measurements taken in pairs: their median, and how far it can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Ratio:
    """The median of after / before over all pairs, and its 90 % interval by bootstrap."""

    median: float
    low: float
    high: float


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Each pair has seen the same machine; the interval says what other pairs would have given."""
    ratios = np.asarray(after) / np.asarray(before)
    rng = np.random.default_rng(0)
    resampled = rng.choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(resampled, axis=1), [0.05, 0.95])
    return Ratio(float(np.median(ratios)), float(low), float(high))
