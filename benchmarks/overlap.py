"""What it brings to collect the next rollout while the learner learns: ``ahead=1`` against 0.

    python benchmarks/overlap.py                                  # five minutes on two cores
    python benchmarks/overlap.py --envs CartPole-v1 --rounds 2 --seconds 0.5

In turns with bare loops, which are the ceiling: a learner that costs nothing, and one that keeps a
core of the head busy for as long as a rollout takes. One worker less than there are cores, so that
the learner has one. Results go to ``benchmarks/results/overlap``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import report
from others import OTHERS_TAKE, OthersWatch, verdict
from paired import ratio_of
from rollout_systems import Results, change_weights, open_cluster, policy_for, roll_ceiling
from rollout_tasks import RolloutTask
from rollout_throughput import CELLS
from sessions import FunctionSession, Turns

# With so many workers on so many cores …
WORKERS, CORES = 15, 16
# … of the ceiling, with a learner that costs nothing.
CEILING_FLOORS = {"CartPole-v1": 0.75, "LunarLander-v3": 0.90, "Pong": 0.85}
BUSY_FLOOR = 1.7
"""Of ahead=0, with a learner that takes as long as a rollout."""
FREE, BUSY = "costs nothing", "as long as a rollout"
AHEAD = (0, 1)
NOTES = f"""\
- Steps per second: medians over the rounds. Of the ceiling, and against ahead=0: ratios to the
  measurement of the same round, their median, and the 90 % interval of that by bootstrap.
- The ceiling: as many processes as there are workers, in which the same policy acts and the same
  envs step; nothing is kept, nobody is told, nobody learns.
- MLPs of 64x64 act, a small CNN in Pong; each rollout has new weights. The learner that takes as
  long as a rollout with ahead=0 computes in Python on the head's thread: ahead=1 can be 2 times as
  fast at most.
- Others: the share of all cores that other processes took meanwhile, the most of any measurement.
  Above {OTHERS_TAKE:.0%} there is no verdict.
"""
FEWER = f"""\
- The floors are meant for {WORKERS} workers on {CORES} cores. Here there were others, so that kept
  and missed say less.
"""


def learner_of(seconds: float) -> Callable[[], None]:
    """Computes for so long: it does not sleep, as no learner does."""

    def learn() -> None:
        deadline = perf_counter() + seconds
        while perf_counter() < deadline:
            pass

    return learn


class Run:
    """One vector env, measured again and again."""

    def __init__(self, envs: Any, task: RolloutTask) -> None:
        self._envs, self._task = envs, task
        self._policy = policy_for(task, envs)

    def _rollout(self, ahead: int) -> int:
        # Another version each time, as a learner would publish.
        change_weights(self._policy)
        rollout = self._envs.rollout(self._policy, self._task.fragment_steps, ahead=ahead)
        return int(rollout.rewards.size)

    def seconds_of_a_rollout(self) -> float:
        """With ``ahead=0``, when everything is warm."""
        self._rollout(0)
        times = []
        for _ in range(5):
            began = perf_counter()
            self._rollout(0)
            times.append(perf_counter() - began)
        return float(np.median(times))

    def steps_per_s(self, ahead: int, learn: Callable[[], None]) -> float:
        """What comes back while the learner learns after each rollout."""
        self._rollout(ahead)
        learn()
        began, steps = perf_counter(), 0
        while (now := perf_counter()) < began + self._task.seconds:
            steps += self._rollout(ahead)
            learn()
        rate = steps / (now - began)
        if ahead:
            # What is under way belongs to nobody's time.
            self._rollout(0)
        return rate


def measure(task: RolloutTask) -> Results:
    """The steps per second of each learner with each ``ahead``, for ever."""
    import clusterenv

    # Whoever is stopped for long is not lost.
    limits = clusterenv.Limits(step_timeout_s=3600.0)
    with open_cluster(task, limits=limits) as envs:
        run = Run(envs, task)
        while True:
            learners = {FREE: 0.0, BUSY: run.seconds_of_a_rollout()}
            watch = OthersWatch()
            rates = {
                key_of(learner, ahead): run.steps_per_s(ahead, learner_of(seconds))
                for learner, seconds in learners.items()
                for ahead in AHEAD
            }
            yield rates | {"others": watch.share(), "rollout_s": learners[BUSY]}


def key_of(learner: str, ahead: int) -> str:
    """The name of a measurement."""
    return f"{learner}, ahead={ahead}"


# The report.


@dataclass
class Cell:
    """All rounds of one env."""

    task: RolloutTask
    rows: list[dict[str, float]] = field(default_factory=list)

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]

    @property
    def others(self) -> float:
        """The most that other processes took."""
        return max(self.column("others"))

    def lines(self) -> list[list[str]]:
        """The ceiling, and each learner with and without."""
        env = self.task.workload
        lines = [[env, "ceiling: bare loops", "", self._median("ceiling"), "", "", ""]]
        for learner in (FREE, BUSY):
            for ahead in AHEAD:
                key = key_of(learner, ahead)
                against = self.ratio(key_of(learner, 0), key)[1] if ahead else ""
                share = self.ratio("ceiling", key)[1]
                row = ["", f"ahead={ahead}", learner, self._median(key), share, against]
                lines.append([*row, f"{self.others:.0%}"])
        return lines

    def promises(self) -> list[list[str]]:
        """Each floor, and whether it was kept."""
        env = self.task.workload
        share = self.ratio("ceiling", key_of(FREE, 1))
        gain = self.ratio(key_of(BUSY, 0), key_of(BUSY, 1))
        floors = {
            f"{env}: ahead=1 / ceiling, the learner {FREE}": (share, CEILING_FLOORS[env]),
            f"{env}: ahead=1 / ahead=0, the learner takes {BUSY}": (gain, BUSY_FLOOR),
        }
        return [
            [name, f"≥ {floor:.2f}", text, verdict(value >= floor, self.others)]
            for name, ((value, text), floor) in floors.items()
        ]

    def ratio(self, before: str, after: str) -> tuple[float, str]:
        """Its median, and how it reads."""
        ratio = ratio_of(self.column(before), self.column(after))
        return ratio.median, f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"

    def _median(self, name: str) -> str:
        return f"{statistics.median(self.column(name)):,.0f}"


def measure_cell(env: str, options: argparse.Namespace) -> Cell:
    """The ceiling and ClusterEnv in turns; whoever does not run is stopped."""
    network, envs_per_worker, steps = CELLS[env]
    sizes = (options.workers, options.envs_per_worker or envs_per_worker, options.steps or steps)
    cell = Cell(RolloutTask(env, network, *sizes, options.seconds, options.warmup))
    systems = {"ceiling": roll_ceiling, "ClusterEnv": measure}
    with Turns(options.timeout) as turns:
        for name, system in systems.items():
            turns.add(name, partial(FunctionSession, system, cell.task))
        for _ in range(options.rounds):
            results = {name: result for name, result, _ in turns.round() if result}
            if set(results) != set(systems):
                raise SystemExit(f"{env}: {set(systems) - set(results)} failed")
            ceiling = results["ceiling"]
            row = {"ceiling": ceiling["steps_per_s"], "cpu_share": ceiling["cpu_share"]}
            cell.rows.append(row | results["ClusterEnv"])
            print(env, cell.rows[-1], file=sys.stderr, flush=True)
    return cell


HEADER = ["env", "", "learner", "steps/s", "of the ceiling", "against ahead=0", "others"]


def main() -> None:
    """Measure each env, then print and save the tables."""
    options = _options()
    about = report.machine()
    cells = [measure_cell(env, options) for env in options.envs]
    settings = {name: getattr(options, name) for name in ("workers", "rounds", "seconds")}
    notes = NOTES + FEWER * ((options.workers, report.cores()) != (WORKERS, CORES))
    promises = [line for cell in cells for line in cell.promises()]
    sections = {
        "Steps per second": report.table(HEADER, [line for cell in cells for line in cell.lines()]),
        "Promises": report.table(["ratio", "promised", "measured", ""], promises),
        "How it was measured": notes + report.facts(settings),
        "Machine": report.facts(about),
    }
    rows = [{"env": cell.task.workload} | row for cell in cells for row in cell.rows]
    numbers = {"machine": about, "settings": settings, "rows": rows}
    report.publish("overlap", sections, numbers, None, options.folder, options.label)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", nargs="+", choices=CELLS, default=list(CELLS))
    add("--workers", type=int, default=max(1, report.cores() - 1))
    add("--envs-per-worker", type=int, help="default: 32, for Pong 8")
    add("--steps", type=int, help="of each env per rollout; default: 128, for Pong 32")
    add("--seconds", type=float, default=1.5, help="per measurement; there are five in a round")
    add("--warmup", type=float, default=0.3, help="seconds of bare loops before each measurement")
    add("--rounds", type=int, default=7)
    add("--timeout", type=float, default=180.0, help="seconds for one measurement with its start")
    add("--folder", type=Path, default=report.RESULTS, help="for the results")
    add("--label", default="", help="for a record beside the usual one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
