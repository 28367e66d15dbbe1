"""``examples/ppo.py --launcher slurm`` on three nodes: what it reaches, and how fast.

    PYTHONPATH=.:examples python benchmarks/ppo_on_slurm.py --total-steps 200_000

Starts a Slurm cluster on this machine (that of ``tests/engines``; needs root). Results go to
``benchmarks/results/ppo_on_slurm``.
"""

import argparse
import os
import tempfile
from pathlib import Path

import ppo
import report

from tests.engines.harness import SlurmCluster

NODES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=200_000)
    given = parser.parse_args()
    machine = report.machine()
    args = ppo.Args(
        "CartPole-v1",
        num_envs=24,
        num_workers=NODES,
        launcher="slurm",
        total_steps=given.total_steps,
        num_minibatches=8,
        gamma=0.98,
        learning_rate=1e-3,
    )
    with SlurmCluster(NODES) as cluster, tempfile.TemporaryDirectory() as out:
        # A node for each worker.
        os.environ.update(cluster.env, SBATCH_EXCLUSIVE="exclusive")
        with (
            ppo.make_envs(args) as envs,
            ppo.Progress("PPO", Path(out), args.total_steps, args) as progress,
        ):
            whereabouts = envs._head.crew.reception.whereabouts
            hosts = [whereabouts(member.worker) for member in envs.roster.members]
            policy = ppo.train(args, envs, progress)
            speed = progress.step / progress.seconds
            episodes = envs.evaluate(policy, 20, seed=1_000_000)
    numbers = {
        "steps": progress.step,
        "steps_per_s": speed,
        "mean_return": float(episodes.returns.mean()),
        "seconds": progress.seconds,
    }
    rows = [
        ("workers", "; ".join(where.split(",")[0] + ")" for where in hosts)),
        ("steps", f"{progress.step:,}"),
        ("steps per second, learning included", f"{speed:,.0f}"),
        ("mean return of 20 evaluation episodes", f"{episodes.returns.mean():.1f} of 500"),
    ]
    sections = {
        "What was done": f"`examples/ppo.py --env-id CartPole-v1 --launcher slurm --num-workers "
        f"{NODES}`, on a Slurm cluster of {NODES} nodes that are namespaces of one machine.",
        "What came of it": report.table(("", ""), rows),
        "Machine": report.facts(machine),
    }
    report.publish("ppo_on_slurm", sections, {"machine": machine, **numbers}, None)


if __name__ == "__main__":
    main()
