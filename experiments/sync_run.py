"""One training run under one sync rule: PPO as in examples/ppo.py, everything written to a file.

    PYTHONPATH=examples:benchmarks python experiments/sync_run.py --rule adaptive:0.1 --seed 3

Rules: ``always``, ``every:N``, ``adaptive:THRESHOLD`` (max_lag 16), ``rate:SHARE`` (a pull budget).
The loss is the decoupled one throughout; where workers always pull it is PPO's own.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import ppo
import report

from clusterenv import AdaptiveSync, ClusterEnv, EveryNth, EveryVersion
from clusterenv.ledger_export import summary
from clusterenv.sync import EVALUATION, PullRate, SyncRule

_POINTS = 200
# What differs from examples/ppo.py, by env.
SETTINGS: dict[str, dict[str, Any]] = {
    "LunarLander-v3": {},
    "CartPole-v1": {"total_steps": 500_000, "gamma": 0.99, "reward_scale": 0.1},
    "Pendulum-v1": {
        "total_steps": 500_000,
        "gamma": 0.9,
        "learning_rate": 1e-3,
        "num_minibatches": 8,
    },
}


def rule_of(text: str, max_lag: int) -> SyncRule:
    """``adaptive:0.1`` → the rule."""
    name, _, value = text.partition(":")
    match name:
        case "always":
            return EveryVersion()
        case "every":
            return EveryNth(int(value))
        case "adaptive":
            return AdaptiveSync(float(value), max_lag)
        case "rate":
            return AdaptiveSync(0.1, max_lag, budget=PullRate(float(value)))
    raise ValueError(f"no such rule: {text}")


class Curve:
    """What examples/progress.py counts, without a display."""

    def __init__(self) -> None:
        self.step = 0
        self.points: list[tuple[int, float, int]] = []
        self._recent: list[float] = []

    def has_reached(self, target_return: float) -> bool:
        """Runs here have a fixed length."""
        return False

    def collected(self, rollout: Any, newest: int) -> None:
        """A rollout has come."""
        self.step += rollout.rewards.size
        self._recent = [*self._recent, *rollout.episodes.returns.tolist()][-100:]
        if self._recent:
            lag = newest - int(rollout.versions.min())
            self.points.append((self.step, float(np.mean(self._recent)), lag))

    def learned(self, **scalars: float) -> None:
        """Nothing to show."""

    def synced(self, ledger: Any) -> None:
        """Nothing to show."""


def run(args: ppo.Args, rule: str) -> dict[str, Any]:
    """Train and evaluate; everything worth keeping."""
    started = time.monotonic()
    with ClusterEnv(
        args.env_id,
        args.num_envs,
        args.num_workers,
        sync=rule_of(rule, args.max_lag),
        encoding=args.encoding,
        wrappers=(ppo.clip_actions,),
    ) as envs:
        curve = Curve()
        policy = ppo.train(args, envs, curve)
        trained_s = time.monotonic() - started
        kept = _from_ledger(envs)
        episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    return {
        "rule": rule,
        "seed": args.seed,
        "return": float(episodes.returns.mean()),
        "returns": episodes.returns.round(2).tolist(),
        "seconds": trained_s,
        "curve": curve.points[:: max(1, len(curve.points) // _POINTS)],
        "json_bytes_per_version": _json_bytes(policy),
        "full_bytes_per_version": sum(
            4 * tensor.numel() for tensor in policy.module.state_dict().values()
        ),
        **kept,
        "settings": {**asdict(args), "out": ""},
        "machine": report.machine(),
        "date": date.today().isoformat(),
    }


def _from_ledger(envs: ClusterEnv) -> dict[str, Any]:
    ledger = envs.ledger
    pulls = [pull for pull in ledger.pulls if pull.cause != EVALUATION]
    measured = ledger.measurements
    return {
        "workers": envs.num_workers,
        "ledger": summary(ledger),
        "causes": ledger.pulls_by_cause,
        "bytes_by_kind": ledger.bytes_by_kind,
        "pulls": [(pull.worker, pull.version, pull.cause, pull.bytes) for pull in pulls],
        "divergences": [
            (m.worker, m.held, m.newest, m.divergence, m.realised)
            for m in measured[:: max(1, len(measured) // (4 * _POINTS))]
        ],
        "effective_sample_size": float(np.mean([m.effective_sample_size for m in measured]))
        if measured
        else None,
    }


def _json_bytes(policy: Any) -> int:
    """The whole module as JSON lists: what the published prototype sends per worker and step."""
    state = policy.module.state_dict()
    return len(json.dumps({name: tensor.tolist() for name, tensor in state.items()}))


def main() -> None:
    """One run, unless its file is there already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="LunarLander-v3", choices=list(SETTINGS))
    parser.add_argument("--rule", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--total-steps", type=int)
    parser.add_argument("--max-lag", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--encoding", default="delta")
    parser.add_argument("--plain", action="store_true", help="the loss of plain PPO")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"))
    options = parser.parse_args()
    args = replace(
        ppo.Args(),
        env_id=options.env_id,
        seed=options.seed,
        num_workers=options.workers,
        max_lag=options.max_lag,
        encoding=options.encoding,
        decoupled=not options.plain,
        eval_episodes=32,
        **SETTINGS[options.env_id],
    )
    if options.total_steps:
        args = replace(args, total_steps=options.total_steps)
    name = f"{options.env_id}_{options.rule.replace(':', '-')}_lag{options.max_lag}"
    name += "_plain" if options.plain else ""
    file = options.out / f"{name}_seed{options.seed}.json"
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    result = run(args, options.rule)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(result) + "\n")
    part.rename(file)
    totals = result["ledger"]
    print(
        f"{name} seed {options.seed}: return {result['return']:.1f}, {totals['pulls']:.0f} pulls "
        f"of {totals['versions']:.0f} versions, {result['seconds']:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
