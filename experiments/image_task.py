"""A task of images, learnt by a CNN: returns, bytes, and what measuring costs.

    PYTHONPATH=examples:benchmarks python experiments/image_task.py

Catch (84x84 pixels) with PPO as in examples/ppo.py, every version pulled and with APS. Beside the
bytes of weights are those of the observations: with images these are the most by far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import catch
import numpy as np
import ppo
import report
import tyro
from estimator import Stopwatch
from networks import FEATURES, convolutions
from sync_run import run
from torch import Tensor, nn

from clusterenv import AdaptiveSync
from clusterenv.head.drift import Drift

ARGS = replace(
    ppo.Args(),
    env_id=f"{catch.__name__}:Catch-v0",
    num_envs=32,
    num_workers=2,
    num_steps=22,
    total_steps=25_000,
    update_epochs=4,
    num_minibatches=4,
    learning_rate=1e-3,
    gamma=0.99,
    reward_scale=1.0,
    encoding="delta",
    eval_episodes=200,
)


class ImageAgent(ppo.Agent):
    """Two convolutions and a layer of 256, for the actor and again for the critic."""

    def __init__(self, envs: Any, hidden: int) -> None:
        super().__init__(envs, hidden)
        channels = envs.single_observation_space.shape[0]
        self.actor = _cnn(channels, envs.single_action_space.n, gain=0.01)
        self.critic = _cnn(channels, 1, gain=1.0)
        del self.mean, self.std

    def normalise(self, observations: Tensor) -> Tensor:
        """The first layer does it."""
        return observations


def _cnn(channels: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        *convolutions(channels),
        ppo.layer(FEATURES, 256),
        nn.ReLU(),
        ppo.layer(256, int(outputs), gain),
    )


def main(seeds: int = 3) -> None:
    """All runs, then the table."""
    measuring, learning = Stopwatch(Drift.measure), Stopwatch(ppo.update)

    def measure(drift: Drift, sparingly: bool) -> None:
        measuring(drift, sparingly)

    Drift.measure, ppo.update = measure, learning  # type: ignore[method-assign]
    results = []
    for rule in ("always", "adaptive:0.1"):
        measuring.seconds = learning.seconds = 0.0
        for seed in range(1, seeds + 1):
            result = run(replace(ARGS, seed=seed), rule, ImageAgent)
            results.append(result)
            print(rule, seed, f"return {result['return']:.2f}", flush=True)
        cost = measuring.seconds / learning.seconds
    report.publish(
        "sync_image_task",
        {
            "Results": report.table(*_table(results)),
            "How it was measured": _notes(cost),
            "Machine": report.facts(report.machine()),
        },
        {"runs": results, "cost_of_measuring": cost},
        None,
    )


def _table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = [
        "rule",
        "seed",
        "return (best 1)",
        "pulls",
        "MB for weights",
        "fewer than in full at every version",
        "MB of fragments",
        "MB as JSON at every step",
    ]
    rows = [
        [
            result["rule"],
            str(result["seed"]),
            f"{result['return']:.2f}",
            f"{sum(map(len, result['pulled_versions']))} of {2 * result['versions']}",
            f"{result['sync_bytes'] / 1e6:.1f}",
            f"{result['full_bytes'] / result['sync_bytes']:.0f}x",
            f"{result['bytes_by_kind']['FragmentMade'] / 1e6:,.0f}",
            f"{result['prototype_bytes'] / 1e6:,.0f}",
        ]
        for result in results
    ]
    return header, rows


def _notes(cost: float) -> str:
    updates = int(np.ceil(ARGS.total_steps / ARGS.num_steps / ARGS.num_envs))
    return (
        f"PPO on Catch, {ARGS.total_steps:,} steps, {updates} updates; return of "
        f"{ARGS.eval_episodes} episodes. Measuring on {AdaptiveSync().rows} rows per host took "
        f"{100 * cost:.1f} % of the time of the PPO updates. MB for weights: all that the socket "
        "carried for weights, pulls and the requests with announcements. In full: actor and critic "
        "in fp32 to each host at every version. JSON at every step: computed for the same run.\n"
    )


if __name__ == "__main__":
    tyro.cli(main)
