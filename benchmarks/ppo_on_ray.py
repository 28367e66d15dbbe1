"""``examples/ppo.py --launcher ray`` on three nodes: what it reaches, and how fast.

    PYTHONPATH=.:examples python benchmarks/ppo_on_ray.py

Starts a Ray cluster on this machine (that of ``tests/engines``; needs root). Results go to
``benchmarks/results/ppo_on_ray``.
"""

import argparse
import os
import tempfile
from pathlib import Path

import ppo
import report

from tests.engines.harness import RayCluster

NODES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=50_000)
    machine = report.machine()
    args = ppo.Args(
        "CartPole-v1",
        num_envs=12,
        num_workers=NODES,
        launcher="ray",
        total_steps=parser.parse_args().total_steps,
        num_minibatches=8,
    )
    with RayCluster(NODES) as cluster, tempfile.TemporaryDirectory() as out:
        os.environ.update(cluster.env)
        with (
            ppo.make_envs(args) as envs,
            ppo.Progress("PPO", Path(out), args.total_steps, args) as progress,
        ):
            whereabouts = envs._head.crew.reception.whereabouts
            hosts = [whereabouts(member.worker) for member in envs.roster.members]
            policy = ppo.train(args, envs, progress)
            seconds = progress.seconds
            episodes = envs.evaluate(policy, 20, seed=1_000_000)
    publish(machine, hosts, progress.step, seconds, float(episodes.returns.mean()))


def publish(machine: dict, hosts: list[str], steps: int, seconds: float, returned: float) -> None:
    rows = [
        ("workers", "; ".join(where.split(",")[0] + ")" for where in hosts)),
        ("steps", f"{steps:,}"),
        ("steps per second, learning included", f"{steps / seconds:,.0f}"),
        ("mean return of 20 evaluation episodes", f"{returned:.1f} of 500"),
    ]
    sections = {
        "What was done": "`examples/ppo.py --env-id CartPole-v1 --launcher ray --num-workers "
        f"{NODES} --num-envs 12 --num-minibatches 8`, on a Ray cluster of {NODES} nodes that are "
        "namespaces of one machine.",
        "What came of it": report.table(("", ""), rows),
        "Machine": report.facts(machine),
    }
    numbers = {"steps": steps, "steps_per_s": steps / seconds, "mean_return": returned}
    report.publish("ppo_on_ray", sections, {"machine": machine, **numbers}, None)


if __name__ == "__main__":
    main()
