"""How often and how soon the worker or host in one place may be replaced: one rule for both."""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

_WINDOW_S = 60.0
FORGIVEN_S = 60.0
"""How much good work gives one restart back."""
_MOST_DOUBLINGS = 6
_MOST_CAUSES = 20
_LONGEST_CAUSE = 200


def explained(reason: str) -> str:
    """Why something was lost, with likely causes if the reason itself says little."""
    if "SIGKILL" not in reason or "memory" in reason:
        return reason
    return (
        f"{reason} (by somebody else; by the kernel for lack of memory; or by its own timer, where "
        "an env has held the GIL for longer than step_timeout_s)"
    )


def longest_delay_s(limits: RestartLimits) -> float:
    """The longest time that a replacement waits before it is started."""
    return limits.restart_backoff_s * float(2**_MOST_DOUBLINGS)


class RestartLimits(Protocol):
    """What the user allows; see :class:`clusterenv.Limits`."""

    @property
    def max_restarts_per_minute(self) -> int:
        """How many restarts within a minute."""

    @property
    def max_restarts(self) -> int:
        """How many restarts without good work in between."""

    @property
    def restart_backoff_s(self) -> float:
        """How long the second replacement in a row waits; each further one twice as long."""


class RestartBudget:
    """The restarts in one place. Pure decisions.

    A restart counts against two limits. Within a minute there may be ``max_restarts_per_minute``.
    And there may be ``max_restarts`` at any rate, of which each minute of good work gives one
    back: a worker that never gets anything done is given up, however long it takes to fail.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._spent = 0.0
        self._causes: Counter[str] = Counter()

    @property
    def num_recent(self) -> int:
        """How many restarts of the last minute count."""
        return len(self._recent)

    @property
    def num_spent(self) -> float:
        """How many restarts good work has not made up for yet."""
        return self._spent

    def spend(
        self,
        limits: RestartLimits,
        cause: str,
        now: float,
        worked_s: float,
        is_orderly: bool = False,
    ) -> str:
        """Spend a restart; returns why there is none left, or empty.

        Args:
            limits: What is allowed.
            cause: Why a restart is needed.
            now: The time on the monotonic clock.
            worked_s: How long the lost one did good work.
            is_orderly: Whether it was told to leave. That is not its fault, and does not count
                against the restarts within a minute.
        """
        self._note(cause)
        self._spent = max(0.0, self._spent - max(0.0, worked_s) / FORGIVEN_S)
        while self._recent and now > self._recent[0] + _WINDOW_S:
            self._recent.popleft()
        if not is_orderly and len(self._recent) >= limits.max_restarts_per_minute:
            return self._refusal(
                f"{len(self._recent)} times within a minute already, which is "
                "max_restarts_per_minute"
            )
        if self._spent + 1 > limits.max_restarts:
            return self._refusal(
                f"{self._spent:.0f} times without enough good work in between, which is "
                f"max_restarts={limits.max_restarts}"
            )
        self._spent += 1
        if not is_orderly:
            self._recent.append(now)
        return ""

    def delay_s(self, limits: RestartLimits) -> float:
        """How long to wait before the restart that was spent last."""
        in_a_row = round(self._spent)
        if in_a_row <= 1:
            return 0.0
        return limits.restart_backoff_s * float(2 ** min(in_a_row - 2, _MOST_DOUBLINGS))

    def _note(self, cause: str) -> None:
        cause = cause.partition("\n")[0][:_LONGEST_CAUSE]
        known = cause in self._causes or len(self._causes) < _MOST_CAUSES
        self._causes[cause if known else "other"] += 1

    def _refusal(self, how_often: str) -> str:
        causes = "; ".join(f"{count} times {cause}" for cause, count in self._causes.most_common())
        return (
            f"It was replaced {how_often} (its losses: {causes}); fix the env, or raise that limit"
        )
