"""Sync rules decide whether a host pulls the newest weights now. Pure code, run on the host."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

FIRST = "first"
VERSION = "version"
THRESHOLD = "threshold"
LAG = "lag"
AGE = "age"
EVALUATION = "evaluation"
"""Not a rule's cause: ``evaluate`` always plays with the newest weights."""


@dataclass(frozen=True)
class News:
    """What a host knows when it decides."""

    held: int
    """The version it holds; 0 for none."""
    newest: int
    """The newest version that it has heard of."""
    divergence: float | None = None
    """Between the two, as last measured by the head; None if it has not been measured."""
    standard_error: float = 0.0
    effective_sample_size: float = 1.0
    """As a share of the rows, if ``held`` acts in place of the newest version."""
    time_s: float = 0.0
    """Now, on a clock that only goes forward."""
    pulled_at_s: float = 0.0
    pulled_bytes: int = 0
    """The time and size of the last pull."""
    first_slot: int = 0
    """Distinguishes hosts."""

    @property
    def lag(self) -> int:
        """How many versions the host is behind."""
        return self.newest - self.held


class SyncRule(Protocol):
    """A rule travels to the hosts and decides there; each host has its own."""

    @property
    def rows(self) -> int:
        """On how many rows of each host the head measures the divergence; 0 for not at all."""

    @property
    def measure(self) -> str:
        """The distributions' method that measures it; ``"divergence"`` is each one's own."""

    @property
    def threshold(self) -> float:
        """The divergence above which a host pulls now, for the ledger; 0 if there is none."""

    def cause_to_pull(self, news: News) -> str | None:
        """Why the host pulls now, in a word for the ledger; None if it does not."""


@dataclass(frozen=True)
class EveryNth:
    """Pull when ``n`` or more versions behind."""

    n: int
    rows: ClassVar[int] = 0
    measure: ClassVar[str] = "divergence"
    threshold: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"EveryNth(n={self.n}): n must be at least 1")

    def cause_to_pull(self, news: News) -> str | None:
        """``first`` for the first version, then every n-th."""
        if news.held == 0 and news.newest > 0:
            return FIRST
        return VERSION if news.lag >= self.n else None


@dataclass(frozen=True)
class EveryVersion(EveryNth):
    """Always act with the newest version."""

    n: int = 1


# What can steer the threshold of AdaptiveSync.

_MOST_OWED = 4.0  # pulls


@dataclass(frozen=True)
class Decision:
    """What a host has just decided."""

    news: News
    pulled: bool
    versions: int
    """How many versions were published since the previous decision …"""
    seconds: float
    """… and the time since then."""


class Budget(Protocol):
    """What steers the threshold, which stays constant otherwise."""

    def excess(self, decision: Decision) -> float:
        """Above 0 if the threshold should rise, below 0 if it should fall; about ±1."""


@dataclass
class PullRate:
    """Pull this share of the versions."""

    share: float
    _overspent: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"PullRate(share={self.share}): it must be above 0 and at most 1")

    def excess(self, decision: Decision) -> float:
        """How much more than its share this decision was.

        The share is that of the whole run: if there were too many or too few pulls while the
        threshold did not fit yet, later decisions make up for it. They do so gently, and for a
        few pulls at most, so that no host waits long.
        """
        share = self.share * (1 - min(max(0.3 * self._overspent, -0.5), 0.5))
        self._overspent += decision.pulled - self.share * decision.versions
        self._overspent = min(max(self._overspent, -_MOST_OWED), _MOST_OWED)
        return decision.pulled - share * decision.versions


@dataclass(frozen=True)
class BytesPerSecond:
    """Spend this many bytes of weights per second and host."""

    budget: float

    def __post_init__(self) -> None:
        if self.budget <= 0:
            raise ValueError(f"BytesPerSecond(budget={self.budget}): it must be above 0")

    def excess(self, decision: Decision) -> float:
        """How many pulls more than the time since the last decision pays for."""
        affordable = self.budget * decision.seconds / max(1, decision.news.pulled_bytes)
        return decision.pulled - min(affordable, 1.0)


@dataclass(frozen=True)
class EffectiveSampleSize:
    """Keep the mean effective sample size of what workers collect at this share of the rows."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"EffectiveSampleSize(share={self.share}): it must be within 0 and 1")

    def excess(self, decision: Decision) -> float:
        """How much better the rows will be than they need to be."""
        size = 1.0 if decision.pulled else decision.news.effective_sample_size
        return (size - self.share) / (1 - self.share)


@dataclass
class AdaptiveSync:
    """Pull when the policy has drifted: adaptive policy synchronization (APS).

    The head measures how far the newest policy is from the copy that acts, on rows that the copy
    has just acted on, and tells the host in a few tens of bytes. The host pulls if the upper
    end of that estimate is above ``threshold``, and in any case if it is ``max_lag`` versions or
    ``max_age_s`` seconds behind.

    Args:
        threshold: The divergence above which to pull: a KL divergence per step, summed over the
            parts of an action; for epsilon-greedy policies the total variation.
        max_lag: Pull when this many versions behind, whatever the divergence says. None removes
            this cap, and training may then freeze: see ``docs/aps.md``.
        max_age_s: Pull when the weights are this old and there are newer ones.
        rows: On how many rows per host the head measures. 16 are enough for image policies.
        budget: :class:`PullRate`, :class:`BytesPerSecond` or :class:`EffectiveSampleSize`; the
            threshold then only says where to begin.
        spread: Each host varies its threshold by up to this share, anew at every pull, so that
            hosts do not all pull at once.
        confidence: How many standard errors the upper end is above the estimate.
        gain: How fast a budget moves the threshold.
        measure: A divergence other than the distribution's own: the name of one of its methods,
            such as ``"jensen_shannon"`` or ``"total_variation"``.
    """

    threshold: float = 0.1
    max_lag: int | None = 16
    max_age_s: float = 300.0
    rows: int = 64
    budget: Budget | None = None
    spread: float = 0.1
    confidence: float = 1.64
    gain: float = 0.2
    measure: str = "divergence"
    _random: random.Random | None = field(default=None, init=False, repr=False, compare=False)
    _factor: float = field(default=1.0, init=False, repr=False, compare=False)
    _decided: News | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, ok in (
            ("threshold", self.threshold >= 0),
            ("max_lag", self.max_lag is None or self.max_lag >= 1),
            ("max_age_s", self.max_age_s > 0),
            ("rows", self.rows >= 2),
            ("spread", 0 <= self.spread < 1),
        ):
            if not ok:
                raise ValueError(
                    f"AdaptiveSync({name}={getattr(self, name)}) is out of range: threshold >= 0, "
                    "max_lag >= 1 or None, max_age_s > 0, rows >= 2, 0 <= spread < 1"
                )
        if self.max_lag is None:
            warnings.warn(
                "AdaptiveSync(max_lag=None): nothing bounds how stale a worker gets. A loss that "
                "clips against the acting policy then keeps the divergence below the threshold "
                "for ever, and training freezes; set max_lag",
                stacklevel=3,
            )

    @staticmethod
    def for_ppo(
        threshold: float | None = None,
        *,
        clip: float = 0.2,
        decoupled: bool = True,
        max_lag: int | None = 16,
        budget: Budget | None = None,
    ) -> AdaptiveSync:
        """For PPO; ``decoupled`` says that it uses :func:`clusterenv.decoupled_loss`.

        A loss that clips against the acting policy keeps the divergence near ``clip² / 2``: a
        threshold near that is never reached, and a warning says so.
        """
        highest = clip**2 / 4
        if threshold is None:
            threshold = 0.1 if decoupled else highest / 2
        if not decoupled and threshold >= highest:
            warnings.warn(
                f"threshold={threshold:g} with clip={clip:g} and a loss that is not decoupled: the "
                f"loss holds the divergence near {clip**2 / 2:g}, so that only max_lag will make "
                f"workers pull. Use a threshold below {highest:g}, or "
                "clusterenv.decoupled_loss",
                stacklevel=2,
            )
        return AdaptiveSync(threshold, max_lag, budget=budget)

    @staticmethod
    def for_off_policy(threshold: float = 0.1, *, max_lag: int | None = 256) -> AdaptiveSync:
        """For DQN, SAC and the like, which publish after every few gradient steps."""
        return AdaptiveSync(threshold, max_lag)

    def cause_to_pull(self, news: News) -> str | None:
        """``first``, ``threshold``, ``lag``, ``age``, or None."""
        if news.held == 0 and news.newest > 0:
            return FIRST
        if news.lag <= 0:
            return None
        cause = self._cause(news)
        self._steer(news, pulled=cause is not None)
        return cause

    def _cause(self, news: News) -> str | None:
        if news.divergence is not None:
            upper = news.divergence + self.confidence * news.standard_error
            # Not `>`: a NaN must not keep a worker from pulling.
            if not upper <= self.threshold * self._factor:
                return THRESHOLD
        if self.max_lag is not None and news.lag >= self.max_lag:
            return LAG
        return AGE if news.time_s - news.pulled_at_s >= self.max_age_s else None

    def _steer(self, news: News, pulled: bool) -> None:
        before, self._decided = self._decided, news
        if pulled:
            self._random = self._random or random.Random(news.first_slot)
            self._factor = 1 + self.spread * self._random.uniform(-1, 1)
        if self.budget is None or before is None or before.newest == news.newest:
            return
        versions, seconds = news.newest - before.newest, news.time_s - before.time_s
        decision = Decision(news, pulled, versions, seconds)
        self.threshold *= math.exp(self.gain * self.budget.excess(decision))
        self.threshold = min(max(self.threshold, 1e-8), 1e3)
