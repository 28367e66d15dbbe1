"""``examples/ppo.py`` on three nodes of an engine: what it reaches, and how fast.

    PYTHONPATH=.:examples python benchmarks/ppo_on_engine.py slurm
    PYTHONPATH=.:examples python benchmarks/ppo_on_engine.py ray --total-steps 50_000

Starts the engine on this machine (that of ``tests/engines``; needs root). Results go to
``benchmarks/results/ppo_on_ENGINE``.
"""

import argparse
import os
from pathlib import Path

import inside
import ppo
import report

from tests.engines.harness import RayCluster, SlurmCluster

NODES = 3
CLUSTERS = {"slurm": SlurmCluster, "ray": RayCluster}
# For examples/launching.py: a host with one worker on each node. Slurm would put them all on one.
ENVIRONMENT = {"NODES": str(NODES), "CPUS": "1", "SBATCH_EXCLUSIVE": "exclusive"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=list(CLUSTERS))
    parser.add_argument("--total-steps", type=int, default=200_000)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    given = parser.parse_args()
    machine = report.machine()
    args = ppo.Args(
        "CartPole-v1",
        num_envs=24,
        launcher=given.engine,
        total_steps=given.total_steps,
        num_minibatches=8,
        gamma=0.98,
        learning_rate=1e-3,
    )
    with CLUSTERS[given.engine](NODES) as cluster:
        os.environ.update(cluster.env, **ENVIRONMENT)
        numbers, hosts = train(args)
    publish(given.engine, machine, numbers, hosts, given.results)


def train(args: ppo.Args) -> tuple[dict[str, float], list[str]]:
    """What came of it, and where the hosts were."""
    with ppo.make_envs(args) as envs, ppo.Progress(args.total_steps) as progress:
        hosts = inside.whereabouts(envs)
        policy = ppo.train(args, envs, progress)
        seconds = progress.seconds
        returns = envs.evaluate(policy, 20, seed=1_000_000).returns
    steps = progress.step
    numbers = {
        "asked_for": args.total_steps,
        "steps": steps,
        "steps_per_s": steps / seconds,
        "mean_return": float(returns.mean()),
    }
    return numbers, hosts


def publish(
    engine: str,
    machine: dict[str, str],
    numbers: dict[str, float],
    hosts: list[str],
    results: Path,
) -> None:
    rows = [
        ("hosts", "; ".join(where.split(",")[0] + ")" for where in hosts)),
        ("steps", f"{numbers['steps']:,}"),
        ("steps per second, learning included", f"{numbers['steps_per_s']:,.0f}"),
        ("mean return of 20 evaluation episodes", f"{numbers['mean_return']:.1f} of 500"),
    ]
    sections = {
        "What was done": f"`NODES={NODES} CPUS=1 examples/ppo.py --env-id CartPole-v1 --launcher "
        f"{engine} --num-envs 24 --num-minibatches 8 --gamma 0.98 --learning-rate 1e-3 "
        f"--total-steps {numbers['asked_for']}`, on {NODES} nodes that are namespaces of one "
        "machine.",
        "What came of it": report.table(("", ""), rows),
        "Machine": report.facts(machine),
    }
    report.publish(f"ppo_on_{engine}", sections, {"machine": machine, **numbers}, None, results)


if __name__ == "__main__":
    main()
