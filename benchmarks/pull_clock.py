"""A sync rule and a policy that tell how long a pull took; both run on the worker."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from clusterenv import Acted, EveryVersion, TorchPolicy


@dataclass
class Clock:
    """When this process last decided to pull, and how long that pull took."""

    decided: float = 0.0
    pull_s: float = 0.0


# Rule and policy travel apart; this is what they share once they are on the worker.
CLOCK = Clock()


@dataclass(frozen=True)
class ClockedEveryVersion(EveryVersion):
    """Always act with the newest version, and remember when that needed a pull."""

    def cause_to_pull(self, *news: Any) -> str | None:
        """As EveryVersion does."""
        CLOCK.decided = perf_counter()
        return super().cause_to_pull(*news)


class PullClockedPolicy(TorchPolicy):
    """Its output ``pull_s`` says how long the pull of its weights took, until it had them."""

    def load(self, weights: Any) -> None:
        """As TorchPolicy does."""
        super().load(weights)
        CLOCK.pull_s = perf_counter() - CLOCK.decided

    def act(self, observations: Any, state: Any, rng: Any) -> Acted:
        """As TorchPolicy does."""
        acted = super().act(observations, state, rng)
        acted.outputs["pull_s"] = np.full(len(acted.outputs["log_prob"]), CLOCK.pull_s)
        return acted
