"""What ClusterEnv leaves of an engine's speed: EnvPool alone and behind it, in turns in one run.

    python benchmarks/engine_throughput.py
    python benchmarks/engine_throughput.py --cells CartPole-v1:1024 --threads 2 --rounds 3

One worker with the same threads, shared memory. `step`: actions from the head. `recv`: partial
batches by EnvPool's own asynchronous mode. `rollout`: a small MLP or CNN acts, in one process with
EnvPool, or on the worker. Takes some seven minutes on two cores. Results go to
``benchmarks/results/engines``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

# As in a worker. Threads of BLAS would fight with those of EnvPool, and lose.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import envpool
import networks
import numpy as np
import report
import torch
from paired import ratio_of

from clusterenv import ClusterEnv, EnvPoolBackend, TorchPolicy
from clusterenv.distributions import Categorical
from clusterenv.randomness import SlotRandom
from clusterenv.tools.bench_policy import bench_policy

CELLS = ("CartPole-v1:1024", "LunarLander-v3:1024", "Pong-v5:128")
WAYS = ("step", "recv", "rollout")
HIDDEN, SEED = 64, 1
NOTES = """\
- Steps per second: medians over the rounds. Ratio: to EnvPool alone in the same round, its median,
  and the 90 % interval of that by bootstrap.
- `step`: random actions from the head. `recv`: as `step`, a quarter of the envs at a time, by
  EnvPool's own asynchronous mode (`batch_size`). `rollout`: an MLP of 64x64 by NumPy acts on one
  thread, a small CNN by torch on images with as many as EnvPool has; 32 steps of each slot, 8 on
  images. Alone, policy and EnvPool run in one process, which keeps nothing but the observations.
"""
Run = Callable[[int], None]


def is_image(space: Any) -> bool:
    """Whether a CNN acts."""
    return len(space.shape) == 3


def fragment_steps(space: Any) -> int:
    """The length of a rollout."""
    return 8 if is_image(space) else 32


def policy_for(envs: Any) -> Any:
    """What acts in a rollout."""
    observations, actions = envs.single_observation_space, envs.single_action_space
    if not is_image(observations):
        return bench_policy(observations, actions, HIDDEN)
    torch.manual_seed(SEED)
    net = networks.small_cnn(observations.shape, int(actions.n))
    return TorchPolicy(net, distribution=logits_of)


def logits_of(net: Any, observations: Any) -> Categorical:
    """The actor alone."""
    return Categorical(net.logits(observations))


def alone(task: str, num_envs: int, threads: int) -> tuple[Run, Run, Run]:
    """EnvPool in this process: steps, partial batches, and steps with a policy."""
    torch.set_num_threads(threads)
    pool = EnvPoolBackend(task, num_threads=threads).build(range(num_envs))
    observations, _ = pool.reset(seed=SEED)
    actions = some_actions(pool.single_action_space, num_envs)
    policy, random = policy_for(pool), SlotRandom(SEED, range(num_envs))

    def step(count: int) -> None:
        for number in range(count):
            pool.step(actions[number % len(actions)])

    def act(count: int) -> None:
        nonlocal observations
        kept = []
        for number in range(count):
            random.go_to(number)
            acted = policy.act(observations, None, random)
            observations, *_ = pool.step(acted.actions)
            kept.append(observations)

    return step, partial_batches_alone(task, num_envs, threads), act


def partial_batches_alone(task: str, num_envs: int, threads: int) -> Run:
    """EnvPool's own asynchronous mode."""
    size = num_envs // 4
    kind = {"env_type": "gymnasium", "num_threads": threads, "seed": SEED}
    pool: Any = envpool.make(task, num_envs=num_envs, batch_size=size, **kind)
    actions = some_actions(pool.single_action_space, size)
    pool.async_reset()

    def receive(count: int) -> None:
        for number in range(4 * count):
            *_, infos = pool.recv()
            pool.send(actions[number % len(actions)], infos["env_id"])

    return receive


def behind(task: str, num_envs: int, threads: int, stack: ExitStack) -> tuple[Run, Run, Run]:
    """The same in one worker of ClusterEnv."""
    backend, size = EnvPoolBackend(task, num_threads=threads), num_envs // 4
    opened = (ClusterEnv(backend, num_envs, batch_size=batch) for batch in (None, size, None))
    stepped, received, rolled = (stack.enter_context(envs) for envs in opened)
    stepped.reset(seed=SEED)
    received.async_reset(seed=SEED)
    rolled.reset(seed=SEED)
    actions = some_actions(stepped.single_action_space, num_envs)
    policy, length = policy_for(rolled), fragment_steps(rolled.single_observation_space)

    def step(count: int) -> None:
        for number in range(count):
            stepped.step(actions[number % len(actions)])

    def receive(count: int) -> None:
        for number in range(4 * count):
            *_, infos = received.recv()
            received.send(actions[number % len(actions)][:size], infos["env_id"])

    def roll(count: int) -> None:
        for _ in range(count // length):
            rolled.rollout(policy, length)

    return step, receive, roll


def some_actions(space: Any, num_envs: int) -> list[Any]:
    """A few batches of random actions."""
    space.seed(SEED)
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(8)]


def seconds_of(run: Run, count: int) -> float:
    """How long so many steps take."""
    begun = time.perf_counter()
    run(count)
    return time.perf_counter() - begun


def count_for(run: Run, seconds: float, length: int) -> int:
    """Steps, in whole fragments of this length, that take about so long."""
    run(length)
    return length * max(1, round(seconds / seconds_of(run, length)))


def measure(cell: str, threads: int, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The steps per second of each round, for each way to step."""
    task, _, number = cell.partition(":")
    num_envs = int(number)
    space = envpool.make_spec(task).gymnasium_observation_space
    length = fragment_steps(space)
    with ExitStack() as stack:
        ways = zip(
            WAYS,
            alone(task, num_envs, threads),
            behind(task, num_envs, threads, stack),
            strict=True,
        )
        for way, one, other in ways:
            count = count_for(one, seconds, length)
            other(length)
            pairs = [(seconds_of(one, count), seconds_of(other, count)) for _ in range(rounds)]
            ones, others = ([num_envs * count / s for s in c] for c in zip(*pairs, strict=True))
            yield {"env": task, "envs": num_envs, "how": way, "alone": ones, "behind": others}


def row_of(cell: dict[str, Any]) -> list[str]:
    """A line of the table."""
    ratio = ratio_of(cell["alone"], cell["behind"])
    speeds = [f"{statistics.median(cell[side]):,.0f}" for side in ("alone", "behind")]
    interval = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return [cell["env"], str(cell["envs"]), cell["how"], *speeds, interval]


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="task:envs …")
    parser.add_argument("--threads", type=int, default=report.cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--label", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cells: list[dict[str, Any]] = []
    for name in options.cells:
        for cell in measure(name, options.threads, options.rounds, options.seconds):
            print(*row_of(cell), flush=True)
            cells.append(cell)
    header = ("env", "envs", "how", "EnvPool alone", "behind ClusterEnv", "ratio")
    settings = {"threads": options.threads, "rounds": options.rounds, "envpool": version("envpool")}
    sections = {
        "Steps per second": report.table(header, map(row_of, cells)),
        "Notes": NOTES,
        "Machine": report.facts({**report.machine(), **settings}),
    }
    numbers = {**report.machine(), **settings, "cells": cells}
    report.publish("engines", sections, numbers, None, label=options.label)


if __name__ == "__main__":
    main()
