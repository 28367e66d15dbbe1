"""DQN on CartPole-v1 and SAC on Pendulum-v1 through `stream`, with every version and with APS.

    PYTHONPATH=examples:benchmarks python experiments/off_policy.py

Learning curves, pulls and bytes go to benchmarks/results/off_policy.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import mean
from typing import Any

import dqn
import report
import sac
import tyro
from intervals import interval
from sync_run import SYNC_MESSAGES, Curve

from clusterenv import AdaptiveSync, ClusterEnv, EveryVersion, LocalLauncher, SyncRule
from clusterenv.sync.exports import summary

THRESHOLD = 0.05
# The sync rule, and how weights travel.
RULES: dict[str, tuple[SyncRule, Any]] = {
    "every version, fp32": (EveryVersion(), "raw"),
    f"adaptive {THRESHOLD:g}, deltas": (AdaptiveSync.for_off_policy(THRESHOLD), "delta"),
}


def run(example: Any, rule: str, seed: int) -> dict[str, Any]:
    """Train one example under one rule."""
    args = replace(example.Args(), seed=seed, num_workers=2)
    sync, encoding = RULES[rule]
    with ClusterEnv(
        args.env_id,
        args.num_envs,
        args.num_workers,
        sync=sync,
        encoding=encoding,
        launcher=LocalLauncher(hosts=args.num_workers),
    ) as envs:
        curve = Curve()
        policy = example.train(args, envs, curve)
        totals = summary(envs.ledger)
        moved = envs.ledger.bytes_by_kind
        episodes = envs.evaluate(policy, 50, seed=seed + 1_000_000)
    result = {
        "example": f"{example.__name__}, {args.env_id}",
        "rule": rule,
        "seed": seed,
        "return": float(episodes.returns.mean()),
        "sync_bytes": sum(moved.get(kind, 0) for kind in SYNC_MESSAGES),
        "ledger": totals,
        "curve": [point[:2] for point in curve.points[:: max(1, len(curve.points) // 100)]],
        "settings": {**asdict(args), "out": ""},
    }
    print(result["example"], rule, seed, f"return {result['return']:.1f}", flush=True)
    return result


def main(seeds: int = 5) -> None:
    """All of them, then the tables."""
    results = [
        run(example, rule, seed)
        for example in (dqn, sac)
        for seed in range(1, seeds + 1)
        for rule in RULES
    ]
    publish(results)


def publish(results: list[dict[str, Any]]) -> None:
    """The tables and the picture."""
    header = ["example", "rule", "seed", "return", "pulls", "versions", "bytes"]
    rows = [
        [
            result["example"],
            result["rule"],
            str(result["seed"]),
            f"{result['return']:.1f}",
            f"{result['ledger']['pulls']:.0f}",
            f"{result['ledger']['versions']:.0f}",
            f"{result['sync_bytes']:,}",
        ]
        for result in results
    ]
    sections = {
        "Results": report.table(*_summary(results)),
        "Runs": report.table(header, rows),
        "How it was measured": "Mean return of 50 evaluation episodes, and its 95 % interval over "
        "the seeds. Pulls of two hosts. Bytes: all that the socket carried for weights, pulls, "
        "announcements and the requests that carry them.\n",
        "Machine": report.facts(report.machine()),
    }
    report.publish("off_policy", sections, {"runs": results}, _picture(results))


def _summary(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    by_rule: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        by_rule.setdefault((result["example"], result["rule"]), []).append(result)
    rows = []
    for (example, rule), runs in by_rule.items():
        always = by_rule[example, next(iter(RULES))]
        differences = [run["return"] - a["return"] for run, a in zip(runs, always, strict=True)]
        pulls = [
            a["ledger"]["pulls"] / run["ledger"]["pulls"]
            for run, a in zip(runs, always, strict=True)
        ]
        saved = [a["sync_bytes"] / run["sync_bytes"] for run, a in zip(runs, always, strict=True)]
        row = [example, rule, str(len(runs)), interval([run["return"] for run in runs])]
        if runs is not always:
            row += [interval(differences), f"{mean(pulls):.1f}x", f"{mean(saved):.1f}x"]
        rows.append(row + [""] * (7 - len(row)))
    header = ["example", "rule", "seeds", "return", "paired difference", "fewer pulls"]
    return [*header, "fewer bytes"], rows


def _picture(results: list[dict[str, Any]]) -> Any:
    from matplotlib.figure import Figure

    examples = sorted({result["example"] for result in results})
    figure = Figure(figsize=(5 * len(examples), 3.6), layout="constrained")
    for axes, example in zip(figure.subplots(1, len(examples)), examples, strict=True):
        for result in results:
            if result["example"] == example:
                steps, returns = zip(*result["curve"], strict=True)
                axes.plot(steps, returns, label=f"{result['rule']}, seed {result['seed']}")
        axes.set(title=example, xlabel="environment steps", ylabel="return, last 100 episodes")
        axes.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    tyro.cli(main)
