"""One training run under one sync rule: PPO as in examples/ppo.py, everything written to a file.

    PYTHONPATH=examples:benchmarks python experiments/sync_run.py --rule adaptive:0.1 --seed 3

Rules: ``always``, ``every:N``, ``adaptive:THRESHOLD`` (max_lag 16), ``rate:SHARE`` (a pull budget).
The loss is the decoupled one throughout; where hosts always pull it is PPO's own. Each worker has
a host of its own behind a socket, so that every pull is one worker's and every byte is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import ppo
import report

from clusterenv import (
    AdaptiveSync,
    ClusterEnv,
    EveryNth,
    EveryVersion,
    Ledger,
    LocalLauncher,
    PullRate,
    SyncRule,
)

_POINTS = 64
# What differs from examples/ppo.py, by env. The small tasks publish as often as the large one.
SETTINGS: dict[str, dict[str, Any]] = {
    "LunarLander-v3": {},
    "CartPole-v1": {
        "total_steps": 250_000,
        "num_steps": 32,
        "num_minibatches": 8,
        "gamma": 0.99,
    },
    "Pendulum-v1": {
        "total_steps": 300_000,
        "num_steps": 32,
        "num_minibatches": 8,
        "gamma": 0.9,
        "learning_rate": 1e-3,
    },
}
# The weights and all talk about them; Collect has the announcement, and is counted whole.
SYNC_MESSAGES = ("Weights", "Announce", "Collect", "Pull", "Pulled")

_NOT_SETTINGS = ("env_id", "seed", "launcher", "threshold", "target_return", "out")


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
    """What clusterenv.logging.Progress counts, without a display."""

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


def run(args: ppo.Args, rule: str, make_agent: Any = ppo.Agent) -> dict[str, Any]:
    """Train and evaluate; everything worth keeping."""
    started = time.monotonic()
    with ClusterEnv(
        args.env_id,
        args.num_envs,
        args.num_workers,
        sync=rule_of(rule, args.max_lag),
        encoding=args.encoding,
        wrappers=(ppo.clip_actions,),
        launcher=LocalLauncher(hosts=args.num_workers),
    ) as envs:
        curve = Curve()
        policy = ppo.train(args, envs, curve, make_agent)
        # Evaluating pulls too: count before it.
        kept = _from_ledger(envs.ledger)
        episodes = envs.evaluate(policy, args.eval_episodes, seed=args.seed + 1_000_000)
    state = policy.module.state_dict()
    full_bytes = sum(4 * tensor.numel() for tensor in state.values())
    return {
        "env": args.env_id,
        "rule": rule,
        "seed": args.seed,
        "return": round(float(episodes.returns.mean()), 2),
        "return_std": round(float(episodes.returns.std()), 2),
        "curve": _thinned(curve.points),
        **kept,
        "full_bytes": args.num_workers * kept["versions"] * full_bytes,
        "prototype_bytes": args.num_workers * curve.step // args.num_envs * _json_bytes(state),
        "seconds": round(time.monotonic() - started, 1),
    }


def _from_ledger(ledger: Ledger) -> dict[str, Any]:
    moved = ledger.bytes_by_kind
    pulled: dict[str, list[int]] = {}
    for pull in ledger.pulls:
        pulled.setdefault(pull.host, []).append(pull.version)
    measured = ledger.measurements
    realised = [m.realised for m in measured if m.realised is not None]
    return {
        "versions": ledger.versions[-1].version,
        "pulled_versions": [pulled[host] for host in sorted(pulled)],
        "pulls_by_cause": ledger.pulls_by_cause,
        "sync_bytes": sum(moved.get(kind, 0) for kind in SYNC_MESSAGES),
        "bytes_by_kind": moved,
        "realised_divergence": round(float(np.mean(realised)), 5) if realised else None,
        "effective_sample_size": round(
            float(np.mean([m.effective_sample_size for m in measured])), 4
        )
        if measured
        else None,
    }


def _thinned(points: list[tuple[int, float, int]]) -> list[tuple[int, float, int]]:
    """Some of them, the last one always."""
    every = max(1, -(-len(points) // _POINTS))
    return [(step, round(value, 1), lag) for step, value, lag in points[::-every][::-1]]


def _json_bytes(state: dict[str, Any]) -> int:
    """The whole module as JSON lists: what the published prototype sends per worker and step."""
    return len(json.dumps({name: tensor.tolist() for name, tensor in state.items()}))


def main() -> None:
    """One run, unless its file is there already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="LunarLander-v3", choices=list(SETTINGS))
    parser.add_argument("--rule", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--total-steps", type=int)
    parser.add_argument("--max-lag", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--encoding", default="delta")
    parser.add_argument("--plain", action="store_true", help="the loss of plain PPO")
    parser.add_argument("--core", type=int, help="head and workers run on this core alone")
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
        eval_episodes=128,
        **SETTINGS[options.env_id],
    )
    if options.total_steps:
        args = replace(args, total_steps=options.total_steps)
    variant = "_plain" if options.plain else ""
    variant += f"_lag{options.max_lag}" if options.max_lag != 16 else ""
    file = options.out / file_name(options.env_id, options.rule + variant, options.seed)
    if file.exists():
        return
    machine = report.machine()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    result = run(args, options.rule)
    settings = {name: value for name, value in asdict(args).items() if name not in _NOT_SETTINGS}
    result |= {"settings": settings, "machine": machine}
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(result) + "\n")
    part.rename(file)
    print(
        f"{file.stem}: return {result['return']:.1f}, {sum(map(len, result['pulled_versions']))} "
        f"pulls of {result['versions']} versions, {result['seconds']:.0f} s",
        flush=True,
    )


def file_name(env_id: str, rule: str, seed: int) -> str:
    """Where a run's result is kept."""
    return f"{env_id}_{rule.replace(':', '-')}_seed{seed}.json"


if __name__ == "__main__":
    main()
