"""PPO on Slurm while hosts and workers are killed: it keeps learning, and the books balance.

    make chaos                                        # 10 minutes
    PYTHONPATH=.:examples python benchmarks/chaos.py --minutes 0.5

Starts a Slurm cluster of four nodes on this machine (that of ``tests/engines``; needs root), runs
PPO on CartPole with a host on each node, and kills a random host or worker with -9 every few
seconds. Every row of every rollout is replayed in an env here. Results go to
``benchmarks/results/chaos``.
"""

import argparse
import os
import random
import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import gymnasium as gym
import inside
import numpy as np
import ppo
import report
import torch
from mlp_policy import mlp_policy

from clusterenv import AdaptiveSync, ClusterEnv, Limits, Rollout, SlurmLauncher
from tests.contract.following import Followed
from tests.engines.harness import SlurmCluster

ENV_ID = "CartPole-v1"
SEED = 1
MAX_LAG = 8
# As many kills as it takes, each made up for at once.
LIMITS = Limits(
    lease_s=10.0, max_restarts_per_minute=1_000, max_restarts=1_000_000, restart_backoff_s=1e-3
)
ARGS = ppo.Args(
    env_id=ENV_ID,
    num_envs=16,
    num_steps=64,
    update_epochs=4,
    num_minibatches=4,
    learning_rate=1e-3,
    gamma=0.98,
    max_lag=MAX_LAG,
)


@dataclass
class Books:
    """What a run says of itself."""

    seconds: float = 0.0
    kills: int = 0
    rollouts: int = 0
    rows: int = 0
    restarts: int = 0
    """How often a slot started over."""
    versions: int = 0
    pulls: int = 0
    longest_rollout_s: float = 0.0
    returns: list[float] = field(default_factory=list)
    """The mean return of the episodes that ended, by rollout."""

    @property
    def first_return(self) -> float:
        return mean_of(self.returns[: max(3, len(self.returns) // 20)])

    @property
    def last_return(self) -> float:
        return mean_of(self.returns[-max(3, len(self.returns) // 20) :])


def mean_of(returns: list[float]) -> float:
    return float(np.nanmean(returns)) if np.isfinite(returns).any() else float("nan")


class Killer(threading.Thread):
    """Kills a random host or worker every now and then."""

    def __init__(self, cluster: SlurmCluster, every_s: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._every_s = cluster, every_s
        self._random, self._over = random.Random(SEED), threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self._over.wait(self._every_s * self._random.uniform(0.5, 1.5)):
            nodes = [self._cluster[name] for name in self._cluster.nodes]
            # `-m clusterenv host` and its workers.
            running = [pid for node in nodes for pid in node.processes("-m clusterenv")]
            if running:
                os.kill(self._random.choice(running), signal.SIGKILL)
                self.kills += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def make_envs() -> ClusterEnv:
    return ClusterEnv(
        ENV_ID,
        ARGS.num_envs,
        launcher=SlurmLauncher(nodes=4, cpus_per_node=2),
        sync=AdaptiveSync.for_ppo(0.1, clip=ARGS.clip_coef, decoupled=True, max_lag=MAX_LAG),
        encoding="delta",
        limits=LIMITS,
    )


def train(envs: ClusterEnv, seconds: float, gain: float) -> Books:
    """Train for so long, or up to three times that until the return has grown by this factor."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    agent = ppo.Agent(envs, ARGS.hidden)
    policy = mlp_policy(agent.actor)
    optimizer = torch.optim.Adam(agent.parameters(), lr=ARGS.learning_rate, eps=1e-5)
    envs.reset(seed=SEED)
    followed, books, began = Followed(envs, partial(gym.make, ENV_ID), SEED), Books(), time.time()
    while not is_over(books, time.time() - began, seconds, gain):
        asked = time.time()
        version = envs.publish(policy)
        rollout = envs.rollout(policy, ARGS.num_steps)
        books.longest_rollout_s = max(books.longest_rollout_s, time.time() - asked)
        followed.check(rollout)
        note(books, rollout, version)
        ppo.update(agent, optimizer, rollout, ARGS)
    books.seconds, books.rows = time.time() - began, followed.rows
    books.restarts, books.pulls = followed.restarts, len(envs.ledger.pulls)
    return books


def is_over(books: Books, elapsed_s: float, seconds: float, gain: float) -> bool:
    if elapsed_s < seconds:
        return False
    return elapsed_s > 3 * seconds or books.last_return > gain * books.first_return


def note(books: Books, rollout: Rollout, version: int) -> None:
    """Enter a rollout into the books; fail if its versions cannot be."""
    books.rollouts += 1
    books.versions = version
    ended = rollout.episodes.returns
    books.returns.append(float(ended.mean()) if len(ended) else float("nan"))
    assert rollout.versions.max() <= version, "acted with weights that were not published yet"
    assert rollout.versions.min() > version - MAX_LAG, "acted with weights that are too old"


def assert_balanced(books: Books, envs: ClusterEnv) -> None:
    """Fail unless the ledger, the rollouts and the hosts say the same."""
    ledger = envs.ledger
    assert books.rows == books.rollouts * ARGS.num_envs * ARGS.num_steps
    assert [v.version for v in ledger.versions] == list(range(1, books.versions + 1))
    assert books.versions == books.rollouts
    assert sum(ledger.pulls_by_host.values()) == books.pulls
    assert sum(ledger.pulls_by_cause.values()) == books.pulls
    assert all(pull.held < pull.version <= books.versions for pull in ledger.pulls)
    first = [pull.host for pull in ledger.pulls if pull.cause == "first"]
    assert len(first) == len(set(first)), "a host pulled for the first time twice"
    slots = [slot for slots in inside.slots_by_host(envs).values() for slot in slots]
    assert sorted(slots) == list(range(ARGS.num_envs))


def run_on(cluster: SlurmCluster, seconds: float, kill_every_s: float, gain: float = 0.0) -> Books:
    """A whole run; AssertionError if anything does not add up."""
    with make_envs() as envs:
        killer = Killer(cluster, kill_every_s)
        killer.start()
        try:
            books = train(envs, seconds, gain)
        finally:
            killer.stop()
        books.kills = killer.kills
        assert_balanced(books, envs)
    wait_until_empty(cluster)
    return books


def wait_until_empty(cluster: SlurmCluster) -> None:
    deadline = time.time() + 20
    while cluster.jobs():
        assert time.time() < deadline, f"jobs were left: {cluster.jobs()}"
        time.sleep(0.1)


def rows_of(books: Books) -> list[tuple[str, str]]:
    return [
        ("seconds", f"{books.seconds:.0f}"),
        ("hosts and workers killed with -9", f"{books.kills:,}"),
        ("slots that started over", f"{books.restarts:,}"),
        ("rollouts", f"{books.rollouts:,}"),
        ("rows, each replayed", f"{books.rows:,}"),
        ("rows per second, checks and learning included", f"{books.rows / books.seconds:,.0f}"),
        ("longest wait for a rollout", f"{books.longest_rollout_s:.1f} s"),
        ("versions published", f"{books.versions:,}"),
        ("pulls", f"{books.pulls:,}"),
        ("mean return, first 5 % of rollouts", f"{books.first_return:.1f}"),
        ("mean return, last 5 % of rollouts", f"{books.last_return:.1f}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-every-s", type=float, default=5.0)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    given = parser.parse_args()
    machine = report.machine()
    with SlurmCluster(4) as cluster:
        os.environ.update(cluster.env)
        books = run_on(cluster, 60 * given.minutes, given.kill_every_s)
    how = (
        f"{ENV_ID}, PPO, {ARGS.num_envs} envs, 4 hosts with 2 workers each as Slurm jobs "
        "(nodes are namespaces of one machine); a random host or worker is killed every "
        f"{given.kill_every_s:g} s on "
        "average. Every row was replayed in an env at the head; versions, pulls, slots and rows "
        "add up; no job was left."
    )
    sections = {
        "What was done": how,
        "What came of it": report.table(("", ""), rows_of(books)),
        "Machine": report.facts(machine),
    }
    # JSON has no NaN.
    returns = [mean if np.isfinite(mean) else None for mean in books.returns]
    numbers = {"machine": machine, **asdict(books), "returns": returns}
    report.publish("chaos", sections, numbers, None, given.results)


if __name__ == "__main__":
    main()
