"""All runs of the sync experiments, one per core; those that are there already are not run again.

    PYTHONPATH=examples:benchmarks python experiments/sync_runs.py --time-limit-s 3600

The most important come first. Under a time limit no run begins that would not end in time, and
the next call goes on where this one stopped. ``sync_report.py`` makes tables and pictures of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import NamedTuple

from sync_run import file_name

RUNS = Path("runs/experiments")
MAIN = ("always", "adaptive:0.1", "every:8")
SWEEP = tuple(f"adaptive:{threshold:g}" for threshold in (0.01, 0.02, 0.05, 0.2, 0.5, 1.0))
OTHER_PERIODS = ("every:4", "every:16")
# How long a run takes until one has been seen, generously.
EXPECTED_S = {"LunarLander-v3": 210.0, "CartPole-v1": 60.0, "Pendulum-v1": 80.0}


class Run(NamedTuple):
    """One training run."""

    env_id: str
    rule: str
    seed: int


def plan() -> list[Run]:
    """All of them, the most important first."""
    small = (*MAIN, *SWEEP, "adaptive:0", *OTHER_PERIODS)
    groups = [
        ("LunarLander-v3", MAIN, 20),
        ("LunarLander-v3", ("rate:0.1", *SWEEP), 5),
        ("CartPole-v1", small, 5),
        ("Pendulum-v1", small, 5),
        ("LunarLander-v3", OTHER_PERIODS, 5),
        # Those beside the recommended one, and on Pendulum the ones that differ most.
        ("LunarLander-v3", ("adaptive:0.05", "adaptive:0.2"), 10),
        ("Pendulum-v1", (*MAIN, "adaptive:0.2", "adaptive:1", "every:16"), 10),
    ]
    runs = [
        Run(env_id, rule, seed)
        for env_id, rules, seeds in groups
        for seed in range(1, seeds + 1)
        for rule in rules
    ]
    return list(dict.fromkeys(runs))


class Queue:
    """Which run comes next on a core that is free."""

    def __init__(self, runs: list[Run], ends_at_s: float) -> None:
        self._waiting, self._ends_at_s = list(runs), ends_at_s
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, now_s: float) -> Run | None:
        """The first that will end in time; None if there is none."""
        with self._lock:
            for run in self._waiting:
                if now_s + 1.05 * self._expected_s(run.env_id) <= self._ends_at_s:
                    self._waiting.remove(run)
                    return run
        return None

    def took(self, run: Run, seconds: float) -> None:
        """A run has ended; the longest says what to expect of the next."""
        with self._lock:
            self._seconds[run.env_id] = max(seconds, self._seconds.get(run.env_id, 0.0))

    def _expected_s(self, env_id: str) -> float:
        return self._seconds.get(env_id, EXPECTED_S[env_id])


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit-s", type=float, default=inf)
    parser.add_argument("--total-steps", type=int, help="of each run, to try this out")
    parser.add_argument("--out", type=Path, default=RUNS)
    options = parser.parse_args()
    ends_at_s = time.monotonic() + options.time_limit_s
    missing = [run for run in plan() if not (options.out / file_name(*run)).exists()]
    queue = Queue(missing, ends_at_s)
    failed: list[Run] = []

    def work(core: int) -> None:
        while run := queue.take(time.monotonic()):
            begun = time.monotonic()
            if _run(run, core, options.out, options.total_steps, ends_at_s - begun):
                queue.took(run, time.monotonic() - begun)
            else:
                failed.append(run)

    cores = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(work, cores))
    left = sum(not (options.out / file_name(*run)).exists() for run in plan())
    print(json.dumps({"missing before": len(missing), "now": left, "failed": failed}))
    sys.exit(bool(failed))


def _run(run: Run, core: int, out: Path, total_steps: int | None, timeout_s: float) -> bool:
    command = [sys.executable, str(Path(__file__).with_name("sync_run.py")), "--out", str(out)]
    command += ["--env-id", run.env_id, "--rule", run.rule, "--seed", str(run.seed)]
    command += ["--core", str(core)]
    command += ["--total-steps", str(total_steps)] if total_steps else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        limit_s = None if timeout_s == inf else timeout_s
        return not subprocess.run(command, env=environment, timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    main()
