"""What the systems of ``rollout_throughput.py`` are asked to do; the peers import this too.

Nothing here needs more than the standard library and ``workloads``: each peer has an interpreter
and packages of its own.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from time import perf_counter

from workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class RolloutTask:
    """Which envs a network acts in, and for how long."""

    workload: str
    network: str
    """One of ``networks.NETWORKS``."""
    workers: int
    envs_per_worker: int
    fragment_steps: int
    """Steps of each env per fragment."""
    seconds: float
    warmup_seconds: float

    @property
    def num_envs(self) -> int:
        """Of all workers."""
        return self.workers * self.envs_per_worker

    @property
    def settings(self) -> Workload:
        """The workload by its name."""
        return WORKLOADS[self.workload]

    def to_json(self) -> str:
        """For another interpreter."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "RolloutTask":
        """What :meth:`to_json` gave."""
        return RolloutTask(**json.loads(text))


def rates(collect: Callable[[], int], task: RolloutTask) -> Iterator[float]:
    """Call ``collect``, which returns how many env steps it brought, for the task's time."""
    while True:
        _collect_for(collect, task.warmup_seconds)
        steps, seconds = _collect_for(collect, task.seconds)
        yield steps / seconds


def _collect_for(collect: Callable[[], int], seconds: float) -> tuple[int, float]:
    steps = 0
    now = start = perf_counter()
    while now - start < seconds:
        steps += collect()
        now = perf_counter()
    return steps, now - start


def print_rates(collect: Callable[[], int], task: RolloutTask, *packages: str) -> None:
    """What a peer does: for each line on stdin, one with its rate and the versions that gave it."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    for _, rate in zip(sys.stdin, rates(collect, task), strict=False):
        print(json.dumps({"steps_per_s": rate, "versions": versions}), flush=True)
