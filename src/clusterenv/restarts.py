"""How often, and how soon, the worker or host in one place may be replaced: one rule for both."""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

_WINDOW_S = 60.0
FORGIVEN_S = 60.0
"""So much good work gives one restart back."""
_MOST_DOUBLINGS = 6
_MOST_CAUSES = 20
_LONGEST_CAUSE = 200


def explained(reason: str) -> str:
    """Why something was lost, and what is behind it, where the reason itself says little."""
    if "SIGKILL" not in reason or "memory" in reason:
        return reason
    return (
        f"{reason} (by somebody else; by the kernel for lack of memory; or by its own timer, where "
        "an env has held the GIL for longer than step_timeout_s)"
    )


def longest_delay_s(limits: RestartLimits) -> float:
    """How long a replacement waits at most before it is started."""
    return limits.restart_backoff_s * float(2**_MOST_DOUBLINGS)


class RestartLimits(Protocol):
    """What the user allows, see :class:`clusterenv.Limits`."""

    @property
    def max_restarts_per_minute(self) -> int:
        """How often within a minute."""

    @property
    def max_restarts(self) -> int:
        """How often without good work in between."""

    @property
    def restart_backoff_s(self) -> float:
        """How long the second replacement in a row waits; each further one twice as long."""


class RestartBudget:
    """The restarts in one place. Decides; opens nothing.

    A restart counts against two limits. Within a minute there may be ``max_restarts_per_minute``.
    And there may be ``max_restarts`` at whatever rate, of which each minute of good work gives one
    back: who never gets anything done is given up, however long it takes to fail.
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
        """How many restarts count that good work has not made up for."""
        return self._spent

    def spend(
        self,
        limits: RestartLimits,
        cause: str,
        now: float,
        worked_s: float,
        is_orderly: bool = False,
    ) -> str:
        """Spend a restart; or why there is none left, in words.

        Args:
            limits: What is allowed.
            cause: Why a restart is needed.
            now: On the monotonic clock.
            worked_s: For how long what is to be replaced did good work.
            is_orderly: Whether somebody told it to leave. That is no fault of its own, and does not
                count as one of the restarts within a minute.
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
