"""When hosts pull newly published weights, and the record of what that took."""

from clusterenv.sync.rules import (
    AGE,
    EVALUATION,
    FIRST,
    LAG,
    THRESHOLD,
    VERSION,
    AdaptiveSync,
    Budget,
    BytesPerSecond,
    Decision,
    EffectiveSampleSize,
    EveryNth,
    EveryVersion,
    News,
    PullRate,
    SyncRule,
)

__all__ = [
    "AGE",
    "EVALUATION",
    "FIRST",
    "LAG",
    "THRESHOLD",
    "VERSION",
    "AdaptiveSync",
    "Budget",
    "BytesPerSecond",
    "Decision",
    "EffectiveSampleSize",
    "EveryNth",
    "EveryVersion",
    "News",
    "PullRate",
    "SyncRule",
]
