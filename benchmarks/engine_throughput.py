"""What ClusterEnv leaves of an engine's speed: the engine alone and behind it, in turns in one run.

    python benchmarks/engine_throughput.py
    python benchmarks/engine_throughput.py --cells CartPole-v1:1024 jax/CartPole:256 --rounds 3

Engines: EnvPool, ALE's own vectorised games, an env in JAX. Each alone, on one host in the head's
process, and on two hosts behind encrypted tcp with half of the threads each. `step`: actions from
the head. `recv`: partial batches by EnvPool's own asynchronous mode. `rollout`: a small MLP or CNN
acts, in one process with the engine, or on the workers. All sides are there at once, and stopped
while another is measured. Takes some ten minutes on two cores. Results go to
``benchmarks/results/engines``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report
from engine_cells import ENGINES, RECV, ROLLOUT, STEP, Cell
from engine_sides import Plan, Result, Side, measure
from paired import ratio_of
from sessions import FunctionSession, Turns

CELLS = (
    "CartPole-v1:1024",
    "LunarLander-v3:1024",
    "Pong-v5:128",
    "ale/pong:32",
    "jax/CartPole:1024",
)
CORES = 16
"""For which the floors were set."""
STEP_FLOORS = {
    Cell("envpool", "CartPole-v1", 1024): 0.60,
    Cell("envpool", "LunarLander-v3", 1024): 0.90,
    Cell("envpool", "Pong-v5", 128): 0.95,
}
"""Of these cells on one host …"""
FLOORS = {
    (Side.ONE_HOST, RECV): 0.90,
    (Side.ONE_HOST, ROLLOUT): 0.90,
    (Side.TWO_HOSTS, ROLLOUT): 0.80,
}
"""… and of the same cells in other ways; all of EnvPool alone with all threads."""
PARTS = ("env", "inference", "serialise", "network", "wait", "learner", "head", "other")
NOTES = """\
- Steps per second: medians over the rounds. Ratio: to the engine alone with all threads in the same
  round, its median, and the 90 % interval of that by bootstrap.
- One host: one worker with all threads, in shared memory. Two hosts: two processes on this machine
  behind encrypted tcp, each with one worker, half of the envs and half of the threads. XLA takes as
  many threads as there are cores in each worker.
- `step`: random actions from the head. `recv`: as `step`, a quarter of the envs at a time, by
  EnvPool's own asynchronous mode (`batch_size`). `rollout`: an MLP of 64x64 acts, by NumPy on one
  thread or by JAX, and a small CNN by torch on images with as many threads as the engine has; 32
  steps of each slot, 8 on images. Alone, policy and engine run in one process, in a loop in Python
  that keeps nothing but the observations.
- EnvPool and ALE reset with the next step, which counts as one. Every row of a `rollout` is a real
  transition: there such a step comes on top and is not counted.
- Where the time goes: of an average worker, in a measurement of its own after the rounds. `env`:
  the engine steps. `inference`: the policy acts. `wait`: for the other worker. `learner`: the loop
  of this benchmark. The rest is what ClusterEnv adds: `serialise` (rows written), `network`
  (messages and wake-ups under way), `head` (requests and results at the head), `other`. In `recv`
  EnvPool's threads step all the while: `env` is the time in which the worker waits for a batch.
- Others: the share of all cores that other processes took, the most of any measurement.
"""


@dataclass(frozen=True)
class Measured:
    """One way to step one cell: all rounds of each side, and the shares of each but the first."""

    cell: Cell
    way: str
    rounds: dict[Side, list[Result]]
    shares: dict[Side, Result]

    def speeds(self, side: Side) -> list[float]:
        """Steps per second of each round."""
        return [result["steps_per_s"] for result in self.rounds[side]]

    def others(self, side: Side) -> float:
        """The most that other processes took."""
        return max(one["others"] for part in (Side.ALONE, side) for one in self.rounds[part])

    def verdict(self, side: Side, ratio: float) -> str:
        """The floor, and whether it was kept."""
        if self.cell not in STEP_FLOORS:
            return ""
        floors = {**FLOORS, (Side.ONE_HOST, STEP): STEP_FLOORS[self.cell]}
        if (floor := floors.get((side, self.way))) is None:
            return ""
        return f"≥ {floor:.2f}: {'kept' if ratio >= floor else 'missed'}"

    @property
    def names(self) -> list[str]:
        """The first columns of both tables."""
        return [self.cell.engine.name, self.cell.env, str(self.cell.num_envs), self.way]

    def lines(self) -> Iterator[list[str]]:
        """Of the table of speeds, one for each side but the first."""
        alone = self.speeds(Side.ALONE)
        for side in self.shares:
            ratio = ratio_of(alone, self.speeds(side))
            yield [
                *self.names,
                str(side),
                f"{statistics.median(alone):,.0f}",
                f"{statistics.median(self.speeds(side)):,.0f}",
                f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                self.verdict(side, ratio.median),
                f"{self.others(side):.0%}",
            ]

    def share_lines(self) -> Iterator[list[str]]:
        """Of the table of shares."""
        for side, shares in self.shares.items():
            yield [*self.names, str(side), *(f"{100 * shares[part]:.1f} %" for part in PARTS)]

    def record(self) -> dict[str, Any]:
        """The raw numbers."""
        return {"way": self.way, "rounds": self.rounds, "shares": self.shares, **asdict(self.cell)}


def measure_cell(cell: Cell, plan: Plan, timeout_s: float) -> Iterator[Measured]:
    """Each way of a cell; its sides take turns."""
    with Turns(timeout_s) as turns:
        for side in Side:
            turns.add(side, partial(FunctionSession, measure, cell, side, plan))
        for way in cell.engine.ways:
            one_round(turns, cell)
            rounds = [one_round(turns, cell) for _ in range(plan.rounds)]
            shares = one_round(turns, cell)
            shares.pop(Side.ALONE)
            yield Measured(cell, way, {s: [one[s] for one in rounds] for s in Side}, shares)


def one_round(turns: Turns, cell: Cell) -> dict[Side, Result]:
    """What each side yields next."""
    found: dict[Side, Result] = {}
    for side, result, missing in turns.round():
        if missing:
            raise SystemExit(f"{cell.engine.name} {cell.env}, {side}: {missing}")
        found[Side(side)] = result
    return found


def main() -> None:
    """Measure, and write the record."""
    options = _options()
    plan = Plan(options.threads, options.rounds, options.seconds)
    machine = report.machine()
    all_measured: list[Measured] = []
    for cell in options.cells:
        for measured in measure_cell(cell, plan, options.timeout):
            for line in measured.lines():
                print(*line, file=sys.stderr, flush=True)
            all_measured.append(measured)
    publish(all_measured, machine, plan, options)


def publish(
    measured: list[Measured], machine: dict[str, str], plan: Plan, options: argparse.Namespace
) -> None:
    """Write the record."""
    names = ("engine", "env", "envs", "how", "where")
    speeds = (*names, "alone", "behind ClusterEnv", "ratio", "floor", "others")
    packages = {engine.package: version(engine.package) for engine in ENGINES.values()}
    settings = {**packages, **asdict(plan)}
    sections = {
        "Steps per second": report.table(speeds, (li for one in measured for li in one.lines())),
        "Where a worker's time goes": report.table(
            (*names, *PARTS), (line for one in measured for line in one.share_lines())
        ),
        "Notes": NOTES + about_floors(),
        "Machine": report.facts({**machine, **settings}),
    }
    numbers = {**machine, **settings, "cells": [one.record() for one in measured]}
    report.publish("engines", sections, numbers, None, options.results, options.label)


def about_floors() -> str:
    """What the verdicts are worth on this machine."""
    if report.cores() >= CORES:
        return ""
    return (
        f"- The floors were set for {CORES} cores. Here head, hosts and engines take turns on "
        f"{report.cores()}.\n"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    cells = [Cell.parse(text) for text in CELLS]
    add("--cells", type=Cell.parse, nargs="+", default=cells, metavar="[ENGINE/]ENV:NUM_ENVS")
    add("--threads", type=int, default=report.cores(), help="of the engine, in all")
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=1.0, help="per measurement, after the warm-up")
    add("--timeout", type=float, default=180.0, help="seconds for one measurement with its start")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    add("--label", default="", help="for a record beside the usual one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
