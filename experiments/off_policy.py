"""DQN on CartPole-v1 and SAC on Pendulum-v1 through `stream`, with every version and with APS.

    PYTHONPATH=examples:benchmarks python experiments/off_policy.py

Learning curves, pulls and bytes go to benchmarks/results/off_policy.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import dqn
import report
import sac
import tyro
from sync_run import Curve

from clusterenv import AdaptiveSync, ClusterEnv, EveryVersion
from clusterenv.ledger_export import summary

THRESHOLD = 0.05


def run(example: Any, adaptive: bool, seed: int) -> dict[str, Any]:
    """Train one example under one rule."""
    args = replace(example.Args(), seed=seed, num_workers=2)
    rule = AdaptiveSync.for_off_policy(THRESHOLD) if adaptive else EveryVersion()
    with ClusterEnv(args.env_id, args.num_envs, args.num_workers, sync=rule) as envs:
        curve = Curve()
        policy = example.train(args, envs, curve)
        totals = summary(envs.ledger)
        episodes = envs.evaluate(policy, 20, seed=seed + 1_000_000)
    result = {
        "example": f"{example.__name__}, {args.env_id}",
        "rule": f"adaptive {THRESHOLD:g}, max_lag 256" if adaptive else "every version",
        "seed": seed,
        "return": float(episodes.returns.mean()),
        "ledger": totals,
        "curve": [point[:2] for point in curve.points[:: max(1, len(curve.points) // 100)]],
        "settings": {**asdict(args), "out": ""},
    }
    print(result["example"], result["rule"], f"return {result['return']:.1f}", flush=True)
    return result


def main(seeds: int = 1) -> None:
    """All of them, then the tables."""
    results = [
        run(example, adaptive, seed)
        for example in (dqn, sac)
        for adaptive in (False, True)
        for seed in range(1, seeds + 1)
    ]
    header = ["example", "rule", "seed", "return", "pulls", "versions", "bytes of weights"]
    rows = [
        [
            result["example"],
            result["rule"],
            str(result["seed"]),
            f"{result['return']:.1f}",
            f"{result['ledger']['pulls']:.0f}",
            f"{result['ledger']['versions']:.0f}",
            f"{result['ledger']['weight_bytes']:,.0f}",
        ]
        for result in results
    ]
    sections = {
        "Results": report.table(header, rows),
        "How it was measured": "Mean return of 20 evaluation episodes. Pulls of two workers.",
        "Machine": report.facts(report.machine()),
    }
    report.publish("off_policy", sections, {"runs": results}, _picture(results))


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
