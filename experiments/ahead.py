"""Does learning suffer if the next rollout is collected meanwhile? ``ahead=1`` beside 0, by seed.

    PYTHONPATH=examples:benchmarks python experiments/ahead.py
    PYTHONPATH=examples:benchmarks python experiments/ahead.py --seeds 5 --time-limit-s 500

PPO with the decoupled loss on LunarLander-v3, each run on a core of its own: about four minutes a
run. What is there is not run again, and under a time limit no run begins that would not end in
time. The record is made of the seeds that both have; it goes to ``benchmarks/results/ahead``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ppo
import report
from intervals import interval
from sync_run import Curve

from clusterenv import ClusterEnv

TARGET, STUCK = 200.0, 220.0
EXPECTED_S = 240.0
HEADER = ("ahead", "seeds", "return", "median", "worst", f"below {STUCK:g}", "minus 0")
STEPS_TO = f"steps until 100 episodes have a mean of {TARGET:g}"
METHOD = f"""\
Return: the mean of 128 evaluation episodes of the learner's policy after training, then mean ± 95 %
interval (Student's t) over seeds. Minus 0: paired by seed. Steps: medians over the runs that got
there, as the workers' policies met their episodes. One core per run, for head and two workers, so
that seconds say nothing here: `benchmarks/time_to_solve.py` has them. Always the decoupled loss;
below {STUCK:g} are runs that learned to hover, whatever the seed.
"""
Result = dict[str, Any]


def train(seed: int, ahead: bool, total_steps: int) -> Result:
    """One run, in this process."""
    started = time.monotonic()
    args = replace(ppo.Args(), seed=seed, ahead=ahead, num_workers=2, total_steps=total_steps)
    with ClusterEnv(args.env_id, args.num_envs, 2, wrappers=(ppo.clip_actions,)) as envs:
        curve = Curve()
        policy = ppo.train(args, envs, curve)
        episodes = envs.evaluate(policy, 128, seed=seed + 1_000_000)
    reached = [step for step, mean, _ in curve.points if mean >= TARGET]
    return {
        "seed": seed,
        "ahead": int(ahead),
        "return": round(float(episodes.returns.mean()), 2),
        "steps_to_target": reached[0] if reached else None,
        "lag": max(lag for *_, lag in curve.points),
        "seconds": round(time.monotonic() - started, 1),
    }


def run_all(options: argparse.Namespace) -> None:
    """What is missing, one run per core at a time."""
    ends_at = time.monotonic() + options.time_limit_s
    waiting = [
        (seed, ahead)
        for seed in range(1, options.seeds + 1)
        for ahead in (0, 1)
        if not _file(options.out, seed, ahead).exists()
    ]
    expected = [EXPECTED_S]

    def work(core: int) -> None:
        while waiting and time.monotonic() + 1.05 * max(expected) < ends_at:
            began = time.monotonic()
            _run_apart(*waiting.pop(0), core, options)
            # The first guess is forgotten once a run has been seen.
            expected[:] = [*expected[expected[0] == EXPECTED_S :], time.monotonic() - began]

    cores = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(work, cores))


def _run_apart(seed: int, ahead: int, core: int, options: argparse.Namespace) -> None:
    command = [sys.executable, __file__, "--one", f"{seed}", f"{ahead}", "--core", f"{core}"]
    command += ["--total-steps", f"{options.total_steps}", "--out", str(options.out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True)


def _file(out: Path, seed: int, ahead: int) -> Path:
    return out / f"ahead{ahead}_seed{seed}.json"


def rows_of(runs: dict[int, dict[int, Result]]) -> list[list[str]]:
    """A row for each ``ahead``; ``runs`` by that and by seed."""
    rows = []
    for ahead, by_seed in runs.items():
        returns = [run["return"] for run in by_seed.values()]
        differences = [run["return"] - runs[0][seed]["return"] for seed, run in by_seed.items()]
        reached = [r["steps_to_target"] for r in by_seed.values() if r["steps_to_target"]]
        rows.append(
            [
                f"{ahead}",
                f"{len(returns)}",
                interval(returns),
                f"{np.median(returns):.0f}",
                f"{min(returns):.0f}",
                f"{sum(value < STUCK for value in returns)}",
                interval(differences) if ahead else "",
                f"{np.median(reached):,.0f} ({len(reached)} runs)" if reached else "none",
            ]
        )
    return rows


def publish(options: argparse.Namespace, machine: dict[str, str]) -> None:
    """The record of all seeds that were run with both."""
    found = [json.loads(file.read_text()) for file in sorted(options.out.glob("ahead*.json"))]
    by_ahead = {a: {r["seed"]: r for r in found if r["ahead"] == a} for a in (0, 1)}
    both = sorted(by_ahead[0].keys() & by_ahead[1].keys())
    if not both:
        sys.exit("no seed was run with both; give it more time")
    runs = {ahead: {seed: by_seed[seed] for seed in both} for ahead, by_seed in by_ahead.items()}
    sections = {
        "Results": report.table((*HEADER, STEPS_TO), rows_of(runs)),
        "How it was measured": METHOD,
        "Settings": report.facts({"env": ppo.Args.env_id, "steps": f"{options.total_steps:,}"}),
        "Machine": report.facts(machine),
    }
    numbers = {"machine": machine, "runs": [one for many in runs.values() for one in many.values()]}
    report.publish("ahead", sections, numbers, None, options.results, "")


def main() -> None:
    """Run what is missing, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", type=int, default=20)
    add("--total-steps", type=int, default=ppo.Args.total_steps)
    add("--time-limit-s", type=float, default=float("inf"))
    add("--out", type=Path, default=Path("runs/experiments/ahead"))
    add("--results", type=Path, default=report.RESULTS, help="folder for the record")
    add("--one", type=int, nargs=2, metavar=("SEED", "AHEAD"), help="this run alone")
    add("--core", type=int, help="the core for it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one is None:
        machine = report.machine()
        run_all(options)
        publish(options, machine)
        return
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    seed, ahead = options.one
    result = train(seed, bool(ahead), options.total_steps)
    file = _file(options.out, seed, ahead)
    file.with_suffix(".part").write_text(json.dumps(result) + "\n")
    file.with_suffix(".part").rename(file)
    print(result, flush=True)


if __name__ == "__main__":
    main()
