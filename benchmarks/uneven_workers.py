"""One host ten times slower than the others: what slots in proportion to speed give back.

    python benchmarks/uneven_workers.py

A step of an env takes a fixed time that its host's speed divides; it sleeps, so that cores do
not matter. Compared: equal shares, shares by measured speed (``balance=True``), rollouts that wait
for most slots only (``wait_num``), and hosts of equal speed with the same total. Results go to
``benchmarks/results/uneven_workers``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium
import inside
import numpy as np
import report
from gymnasium.spaces import Box, Discrete

import clusterenv
from clusterenv import LocalLauncher, NumpyPolicy
from clusterenv.distributions import Categorical

SPEED = "CLUSTERENV_BENCHMARK_SPEED"
STEP_S = 1e-3
NUM_ENVS, NUM_STEPS = 64, 32
UNEVEN = (1.0, 1.0, 1.0, 0.1)
PROMISED = 0.9
NOTES = f"""\
- {NUM_ENVS} slots, {len(UNEVEN)} hosts with one worker each and speeds {UNEVEN}, rollouts of
  {NUM_STEPS} steps; a step takes {1e3 * STEP_S:g} ms at speed 1. "Even": the same total speed in
  equal hosts.
- The first rollouts, in which speeds are measured and slots move, are not counted.
- `wait_num`: rollouts that return with three quarters of the slots; rows per second of what came.
"""


class Sleeper(gymnasium.Env[Any, Any]):
    """Takes its time, by the speed of the machine that it is on."""

    observation_space = Box(-1, 1, (4,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step_s = STEP_S / float(os.environ[SPEED])
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return np.zeros(4, np.float32), 0.0, False, False, {}


class MachinesOfSpeed(LocalLauncher):
    """Local hosts that stand for machines of these speeds."""

    def __init__(self, speeds: Sequence[float]) -> None:
        super().__init__(hosts=len(speeds))
        self._speeds = speeds

    def command(self, host: str) -> list[str]:
        """With the speed of its place."""
        place = int(host.removeprefix("host-").partition(".")[0])
        return ["env", f"{SPEED}={self._speeds[place]}", *super().command(host)]


def even_odds(weights: Any, observations: Any) -> Categorical:
    return Categorical(np.zeros((len(observations), 2), np.float32))


def rows_per_s(
    speeds: Sequence[float], seconds: float, wait_num: int | None = None, **options: Any
) -> tuple[float, list[int]]:
    """Throughput of rollouts, and the slots that each host has in the end."""
    launcher = MachinesOfSpeed(speeds)
    with clusterenv.ClusterEnv(
        Sleeper, NUM_ENVS, len(speeds), launcher=launcher, **options
    ) as envs:
        policy = NumpyPolicy(even_odds, {"none": np.zeros(1, np.float32)})
        envs.reset(seed=0)
        for _ in range(5):
            envs.rollout(policy, NUM_STEPS, wait_num=wait_num)
        start, rows = perf_counter(), 0
        while perf_counter() - start < seconds:
            rows += envs.rollout(policy, NUM_STEPS, wait_num=wait_num).rewards.size
        elapsed = perf_counter() - start
        return rows / elapsed, list(map(len, inside.slots_by_host(envs).values()))


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    args = parser.parse_args()
    even = [sum(UNEVEN) / len(UNEVEN)] * len(UNEVEN)
    measured = {
        "even speeds, equal shares": rows_per_s(even, args.seconds),
        "uneven, equal shares": rows_per_s(UNEVEN, args.seconds),
        "uneven, `balance=True`": rows_per_s(UNEVEN, args.seconds, balance=True),
        "uneven, `wait_num=48`": rows_per_s(UNEVEN, args.seconds, wait_num=48),
    }
    reference = measured["even speeds, equal shares"][0]
    rows = [
        [name, f"{rate:.0f}", f"{rate / reference:.2f}", " ".join(map(str, slots))]
        for name, (rate, slots) in measured.items()
    ]
    machine = report.machine()
    sections = {
        "Machine": report.facts(machine),
        "Rollouts": report.table(["", "rows/s", "of even speeds", "slots by host"], rows),
        "Notes": f"{NOTES}- Promised for shares by speed: {PROMISED} of even speeds.",
    }
    numbers = {"machine": machine, "rows_per_s": {name: m[0] for name, m in measured.items()}}
    report.publish("uneven_workers", sections, numbers, None, args.folder)


if __name__ == "__main__":
    main()
