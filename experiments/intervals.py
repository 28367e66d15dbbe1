"""Means over seeds with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Student's t at 97.5 %, for 1, 2, … degrees of freedom; 1.96 beyond.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T += (2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04)


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean; 0 for a single value."""
    degrees = len(values) - 1
    if degrees < 1:
        return 0.0
    t = _T[degrees - 1] if degrees <= len(_T) else 1.96
    return float(t * np.std(values, ddof=1) / len(values) ** 0.5)


def interval(values: Sequence[float]) -> str:
    """The mean and its 95 % interval."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "-"
    return f"{np.mean(values):.1f} ± {half_width(values):.1f}"
