"""All runs of the sync experiments, some at a time; those that are there already are left alone.

PYTHONPATH=examples:benchmarks python experiments/run.py --parallel 16
PYTHONPATH=examples:benchmarks python experiments/run.py --only-report
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import report

RUNS = Path("runs/experiments")
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SEEDS = {"always": 20, "adaptive:0.1": 20}
RULES = ["always", *(f"adaptive:{threshold:g}" for threshold in THRESHOLDS), "every:4", "every:8"]
ENVS = ("LunarLander-v3", "CartPole-v1", "Pendulum-v1")


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=ENVS)
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--seeds", type=int, help="default: 20 for the main ones, else 5")
    parser.add_argument("--only-report", action="store_true")
    options = parser.parse_args()
    if not options.only_report:
        tasks = [
            (env, rule, seed)
            for env in options.envs
            for rule in options.rules
            for seed in range(1, (options.seeds or SEEDS.get(rule, 5)) + 1)
        ]
        with ThreadPoolExecutor(options.parallel) as pool:
            list(pool.map(lambda task: _run(*task), tasks))
    results = [json.loads(file.read_text()) for file in sorted(RUNS.glob("*.json"))]
    for env in sorted({result["settings"]["env_id"] for result in results}):
        _report(env, [r for r in results if r["settings"]["env_id"] == env])


def _run(env: str, rule: str, seed: int) -> None:
    script = Path(__file__).with_name("sync_run.py")
    command = [sys.executable, str(script), "--env-id", env, "--rule", rule, "--seed", str(seed)]
    subprocess.run([*command, "--out", str(RUNS)], check=True, env=dict(os.environ))


def _report(env: str, results: list[dict[str, Any]]) -> None:
    by_rule: dict[str, dict[int, dict[str, Any]]] = {}
    for result in results:
        by_rule.setdefault(result["rule"], {})[result["seed"]] = result
    always = by_rule.get("always", {})
    rows = [_row(rule, runs, always) for rule, runs in sorted(by_rule.items())]
    header = ["rule", "seeds", "return", "minus always", "fewer pulls", "fewer bytes"]
    sections = {
        "Results": report.table(header, rows),
        "How it was measured": "Returns are means of 32 evaluation episodes of the learner's "
        "policy, with 95 % bootstrap intervals over seeds; differences are paired by seed. Fewer "
        "bytes: those on the socket for weights and all talk about them, against the full policy "
        "in fp32 at every version.",
        "Machine": report.facts(results[0]["machine"]),
    }
    numbers = {"runs": [{k: r[k] for k in ("rule", "seed", "return", "ledger")} for r in results]}
    report.publish(f"sync_{env}", sections, numbers, None)


def _row(
    rule: str, runs: dict[int, dict[str, Any]], always: dict[int, dict[str, Any]]
) -> list[str]:
    pairs = [run["return"] - always[seed]["return"] for seed, run in runs.items() if seed in always]
    pulls = mean(
        r["ledger"]["versions"] * r["workers"] / r["ledger"]["pulls"] for r in runs.values()
    )
    saved = mean(
        r["ledger"]["versions"]
        * r["workers"]
        * r["full_bytes_per_version"]
        / r["ledger"]["sync_bytes"]
        for r in runs.values()
    )
    return [
        rule,
        str(len(runs)),
        _interval([run["return"] for run in runs.values()]),
        _interval(pairs) if rule != "always" else "",
        f"{mean(pulls):.1f}x",
        f"{mean(saved):.1f}x",
    ]


def _interval(values: list[float]) -> str:
    """The mean, and the 95 % interval of means of so many values drawn from these."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "-"
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{np.mean(values):.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
