"""How far one head scales: what each worker, fragment and pull costs it.

    python benchmarks/scale.py
    python benchmarks/scale.py --workers 4 16 --seconds 1

Workers are light (trivial envs and policy), many per process, and speak the real protocol over
encrypted tcp; only the head is measured. Results go to ``benchmarks/results/scale``.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import gymnasium
import numpy as np
import report
from crowd import CrowdLauncher
from gymnasium.spaces import Box, Discrete

import clusterenv
from clusterenv import NumpyPolicy
from clusterenv.distributions import Categorical

SLOTS_PER_WORKER = 2
NUM_STEPS = 32
EPISODE = 1000
WEIGHTS = 16_384
NOTES = f"""\
- {SLOTS_PER_WORKER} slots per worker; observations of 8 floats; fragments of {NUM_STEPS} steps;
  weights of {4 * WEIGHTS // 1024} kB, raw. Everything travels over CURVE-encrypted tcp.
- CPU: of the whole head process (user's thread, I/O thread, libzmq's thread with the encryption),
  from `process_time`, per unit. Per pull: what a rollout with a new version costs more than one
  without, divided by the pulls.
- Join: from the constructor to the first reset, with the start of the processes.
- Rows: every row of every fragment is checked to be the next one of its own slot.
"""


class Tally(gymnasium.Env[Any, Any]):
    """Says who it is (its seed) and how many steps it has made."""

    observation_space = Box(-np.inf, np.inf, (8,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._who, self._age = float(seed or 0), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._age += 1
        return self._observe(), float(self._age), False, False, {}

    def _observe(self) -> Any:
        return np.array([self._who, self._age, 0, 0, 0, 0, 0, 0], np.float32)


def even_odds(weights: Any, observations: Any) -> Categorical:
    return Categorical(np.zeros((len(observations), 2), np.float32))


class Rows:
    """Counts rows that are lost, doubled or in another's place."""

    def __init__(self, num_envs: int) -> None:
        self._ages = np.zeros(num_envs)
        self.checked = self.wrong = 0

    def check(self, fragment: clusterenv.Fragment) -> None:
        """Take a fragment."""
        slots, who, age = (
            fragment.slots,
            fragment.observations[..., 0],
            fragment.observations[..., 1],
        )
        expected = self._ages[slots] + np.arange(len(age))[:, None]
        self.wrong += int(((who != slots) | (age != expected))[:-1].sum())
        self.checked += fragment.rewards.size
        self._ages[slots] = age[-1]


def measure(num_workers: int, seconds: float, num_processes: int) -> dict[str, float]:
    """One row of the table."""
    start = perf_counter()
    envs = clusterenv.ClusterEnv(
        Tally,
        SLOTS_PER_WORKER * num_workers,
        num_workers,
        launcher=CrowdLauncher(num_processes),
        limits=clusterenv.Limits(startup_timeout_s=600.0),
    )
    with envs:
        envs.reset(seed=0)
        row: dict[str, float] = {"workers": num_workers, "join_s": perf_counter() - start}
        weights = {"weights": np.zeros(WEIGHTS, np.float32)}
        policy = NumpyPolicy(even_odds, weights)
        rows = Rows(envs.num_envs)
        row |= measure_rollouts(envs, policy, rows, seconds)
        row |= measure_stream(envs, policy, rows, seconds)
        row |= measure_steps(envs, seconds)
        row |= {"rows_checked": rows.checked, "rows_wrong": rows.wrong, "head_mb": memory_mb()}
    return row


def memory_mb() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def timed(seconds: float, turn: Any) -> tuple[int, float, float]:
    """How often ``turn`` ran, the seconds it took and the CPU seconds of this process."""
    turn()
    count, wall, cpu = 0, perf_counter(), process_time()
    while perf_counter() - wall < seconds or count < 3:
        turn()
        count += 1
    return count, perf_counter() - wall, process_time() - cpu


def measure_rollouts(
    envs: clusterenv.ClusterEnv, policy: NumpyPolicy, rows: Rows, seconds: float
) -> dict[str, float]:
    """Rollouts with the same version, and with a new one for each."""
    workers = envs.num_workers

    def same() -> None:
        rows.check(envs.rollout(policy, NUM_STEPS))

    def new() -> None:
        policy.weights()["weights"][0] += 1
        same()

    count, wall, cpu = timed(seconds, same)
    count_new, _, cpu_new = timed(seconds, new)
    fragment_s, pulled_s = cpu / count / workers, cpu_new / count_new / workers
    return {
        "rollout_fragments_per_s": count * workers / wall,
        "rollout_cpu_us_per_fragment": 1e6 * fragment_s,
        "cpu_us_per_pull": 1e6 * (pulled_s - fragment_s),
    }


def measure_stream(
    envs: clusterenv.ClusterEnv, policy: NumpyPolicy, rows: Rows, seconds: float
) -> dict[str, float]:
    """Fragments as they finish."""
    stream = envs.stream(NUM_STEPS)
    count, wall, cpu = timed(seconds, lambda: rows.check(next(stream)))
    stream.close()  # type: ignore[attr-defined]
    return {
        "stream_fragments_per_s": count / wall,
        "stream_cpu_us_per_fragment": 1e6 * cpu / count,
    }


def measure_steps(envs: clusterenv.ClusterEnv, seconds: float) -> dict[str, float]:
    """Lockstep with actions from the head."""
    envs.reset(seed=0)
    actions = np.zeros(envs.num_envs, np.int64)
    count, wall, cpu = timed(seconds, partial(envs.step, actions))
    return {
        "steps_per_s": count * envs.num_envs / wall,
        "step_cpu_us_per_worker": 1e6 * cpu / count / envs.num_workers,
    }


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=4, help="that the workers share")
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    args = parser.parse_args()
    rows = []
    for num_workers in args.workers:
        rows.append(measure(num_workers, args.seconds, args.processes))
        print({name: round(value, 2) for name, value in rows[-1].items()}, flush=True)
        time.sleep(1)
    machine, header = report.machine(), list(rows[0])
    cells = [[f"{row[name]:.5g}" for name in header] for row in rows]
    sections = {
        "Machine": report.facts(machine),
        "The head's costs": report.table(header, cells),
        "Notes": NOTES,
    }
    report.publish("scale", sections, {"machine": machine, "rows": rows}, None, args.folder)


if __name__ == "__main__":
    main()
