"""What other processes took of the machine while something was measured; floors and verdicts."""

from time import perf_counter, process_time

import report
from leftovers import cpu_seconds, descendants, machine_cpu_seconds

OTHERS_TAKE = 0.05
"""Of all cores; where other processes took more, there is no verdict."""


class OthersWatch:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._everybody, self._ours = machine_cpu_seconds(), _own_cpu_seconds()
        self._began = perf_counter()

    def share(self) -> float:
        """The share of all cores that neither this process nor its descendants had."""
        ours = _own_cpu_seconds() - self._ours
        others = machine_cpu_seconds() - self._everybody - ours
        return others / (perf_counter() - self._began) / report.cores()


def verdict(is_kept: bool, others: float) -> str:
    """Whether a floor was kept; on a busy machine nobody knows."""
    if others > OTHERS_TAKE:
        return f"no verdict: others took {others:.0%}"
    return "kept" if is_kept else "missed"


def _own_cpu_seconds() -> float:
    return process_time() + sum(cpu_seconds(pid) for pid in descendants())
