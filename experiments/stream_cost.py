"""What measuring costs a learner that publishes after every gradient step, in `stream`.

    PYTHONPATH=examples:benchmarks python experiments/stream_cost.py

DQN on CartPole-v1. The more gradient steps per fragment, the more often it publishes between two
fragments of a host; how often is the divergence measured then, and what does it take?
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dqn
import inside
import report
import torch
import tyro
from estimator import Stopwatch
from replay import Replay

from clusterenv import AdaptiveSync, ClusterEnv, LocalLauncher

UPDATES_PER_FRAGMENT = (1, 4, 16, 64)


def run(num_hosts: int, updates: int, fragments: int) -> dict[str, float]:
    """Learn from so many fragments; counts and seconds."""
    torch.set_num_threads(1)
    args = replace(dqn.Args(), num_envs=4 * num_hosts)
    rule = AdaptiveSync.for_off_policy(0.05)
    # Hosts with a worker each.
    hosts = LocalLauncher(hosts=num_hosts)
    with ClusterEnv(args.env_id, args.num_envs, num_hosts, launcher=hosts, sync=rule) as envs:
        survey = inside.wrap_survey(envs, Stopwatch)
        network = dqn.QNetwork(envs, args.hidden)
        learner, replay = dqn.Learner(network, args), Replay(args.buffer_size, args.seed)
        network.epsilon.fill_(0.1)
        learn, publish = Stopwatch(learner.update), Stopwatch(envs.publish)
        envs.reset(seed=args.seed)
        envs.publish(network)
        for count, fragment in enumerate(envs.stream(args.num_steps), 1):
            replay.add(fragment)
            for _ in range(updates):
                learn(replay.sample(args.batch_size))
                publish(network)
            if count == fragments:
                break
        ledger = envs.ledger
        return {
            "hosts": num_hosts,
            "gradient steps and versions per fragment": updates,
            "fragments": fragments,
            "measurements": len(ledger.measurements),
            "pulls": len(ledger.pulls),
            "measuring_s": survey.seconds,
            "publishing_s": publish.seconds - survey.seconds,
            "learning_s": learn.seconds,
        }


def main(fragments: int = 400) -> None:
    """All of them, then the table."""
    results = [
        run(hosts, updates, fragments) for hosts in (2, 4) for updates in UPDATES_PER_FRAGMENT
    ]
    header = [
        "hosts",
        "versions per fragment",
        "measurements per fragment",
        "ms of measuring per fragment",
        "share of the gradient steps",
    ]
    sections = {
        "Results": report.table(header, [_row(result) for result in results]),
        "How it was measured": "DQN on CartPole-v1 with a network of 128x128, a publish after "
        f"every gradient step, {fragments} fragments of 16 steps of 4 envs. A measurement is of "
        "one host, on 64 rows of its latest fragment: when a version is first newer than what "
        "acted, and again whenever the lag has doubled.\n",
        "Machine": report.facts(report.machine()),
    }
    report.publish("sync_stream_cost", sections, {"runs": results}, None)


def _row(result: dict[str, Any]) -> list[str]:
    fragments = result["fragments"]
    return [
        str(result["hosts"]),
        str(result["gradient steps and versions per fragment"]),
        f"{result['measurements'] / fragments:.2f}",
        f"{1e3 * result['measuring_s'] / fragments:.2f}",
        f"{100 * result['measuring_s'] / result['learning_s']:.1f} %",
    ]


if __name__ == "__main__":
    tyro.cli(main)
