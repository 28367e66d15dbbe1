"""A sync rule and a policy that tell how long a pull took.

The rule decides on the host and the policy is loaded by a worker, which is another process: they
share a clock in a file. Processes of one machine read the same time.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from clusterenv import Acted, EveryVersion, TorchPolicy


def make_clock(file: Path) -> None:
    """Make the file that rule and policy share."""
    file.write_bytes(bytes(8))


def _clock(file: str) -> np.ndarray:
    """One number: when the last pull was decided on."""
    with open(file, "r+b") as opened:
        return np.frombuffer(mmap.mmap(opened.fileno(), 8), np.float64)


@dataclass(frozen=True)
class ClockedEveryVersion(EveryVersion):
    """Always act with the newest version, and remember when that needed a pull."""

    file: str = ""

    def cause_to_pull(self, *news: Any) -> str | None:
        """As EveryVersion does."""
        cause = super().cause_to_pull(*news)
        if cause is not None:
            _clock(self.file)[0] = perf_counter()
        return cause


class PullClockedPolicy(TorchPolicy):
    """Its output ``pull_s`` says how long the pull of its weights took, until it had them."""

    def __init__(self, file: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._file, self._pull_s = file, 0.0

    def load(self, weights: Any) -> None:
        """As TorchPolicy does."""
        super().load(weights)
        self._pull_s = perf_counter() - _clock(self._file)[0]

    def act(self, observations: Any, state: Any, rng: Any) -> Acted:
        """As TorchPolicy does."""
        acted = super().act(observations, state, rng)
        acted.outputs["pull_s"] = np.full(len(acted.outputs["log_prob"]), self._pull_s)
        return acted
