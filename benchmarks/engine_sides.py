"""The sides of ``engine_throughput.py``: an engine alone, and behind ClusterEnv. Each in a process.

Only one side of a cell runs at a time; the others are stopped meanwhile (``sessions.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count, cycle
from time import perf_counter, process_time
from typing import Any

import inside
import numpy as np
import report
from engine_cells import RECV, SEED, STEP, Cell, fragment_steps, some_actions
from leftovers import cpu_seconds, descendants, machine_cpu_seconds

Turn = Callable[[], int]
"""Does something once, and returns how many steps that were."""
Result = dict[str, float]
WARMUP_S = 0.1


class Side(StrEnum):
    """Where the engine is."""

    ALONE = "alone"
    ONE_HOST = "one host, shared memory"
    TWO_HOSTS = "two hosts, tcp"


@dataclass(frozen=True)
class Plan:
    """How a cell is measured; ``threads`` are those of all hosts together."""

    threads: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Ready:
    """A way to step whose envs are there."""

    turn: Turn
    profile: Callable[[], AbstractContextManager[Any]] = nullcontext


def measure(cell: Cell, side: Side, plan: Plan) -> Iterator[Result]:
    """Nothing first. For each way nothing, once its envs are there, its rounds, and its profile."""
    warnings.simplefilter("ignore")
    yield {}
    for way in cell.engine.ways:
        with _open(cell, side, way, plan.threads) as ready:
            _turns(ready.turn, WARMUP_S)
            yield {}
            for _ in range(plan.rounds):
                # Whoever was stopped finds its caches cold.
                _turns(ready.turn, WARMUP_S)
                yield run_for(ready.turn, plan.seconds)
            yield profile_of(ready, plan.seconds)


def run_for(turn: Turn, seconds: float) -> Result:
    """Steps per second, and the share of all cores that other processes took meanwhile."""
    everybody, ours = machine_cpu_seconds(), _own_cpu_seconds()
    steps, passed_s = _turns(turn, seconds)
    others_s = machine_cpu_seconds() - everybody - (_own_cpu_seconds() - ours)
    others = max(0.0, others_s) / passed_s / report.cores()
    return {"steps_per_s": steps / passed_s, "others": others}


def _turns(turn: Turn, seconds: float) -> tuple[int, float]:
    """How many steps there were, and how long they took."""
    steps, begun = 0, perf_counter()
    while (passed_s := perf_counter() - begun) < seconds:
        steps += turn()
    return steps, passed_s


def _own_cpu_seconds() -> float:
    """Of this process and those that it has started."""
    return process_time() + sum(cpu_seconds(pid) for pid in descendants())


def profile_of(ready: Ready, seconds: float) -> Result:
    """The shares of an average worker's time; nothing for an engine alone."""
    from clusterenv.profile import shares

    with ready.profile() as profile:
        if profile is None:
            return {}
        _turns(ready.turn, seconds)
    return shares(profile.result)


def _open(cell: Cell, side: Side, way: str, threads: int) -> AbstractContextManager[Ready]:
    return _alone(cell, way, threads) if side is Side.ALONE else _behind(cell, side, way, threads)


# Alone: the engine and, in a rollout, the policy in this process.


@contextmanager
def _alone(cell: Cell, way: str, threads: int) -> Iterator[Ready]:
    engine: Any = cell.engine
    if way == RECV:
        pool = engine.alone(cell.env, cell.num_envs, threads, cell.batch_size)
        pool.async_reset()
        yield Ready(_receiving(pool, cell.num_envs))
        return
    env = engine.alone(cell.env, cell.num_envs, threads)
    turn = _stepping_alone if way == STEP else _acting_alone
    yield Ready(turn(cell, env, threads))


def _stepping_alone(cell: Cell, env: Any, threads: int) -> Turn:
    env.reset()
    actions = cycle(some_actions(env.single_action_space, cell.num_envs))

    def turn() -> int:
        observations, *_ = env.step(next(actions))
        np.asarray(observations)
        return cell.num_envs

    return turn


def _acting_alone(cell: Cell, env: Any, threads: int) -> Turn:
    from clusterenv.randomness import SlotRandom

    _use_threads(threads)
    first = env.reset()
    latest = first[0] if isinstance(first, tuple) else first
    policy = cell.engine.policy(env.single_observation_space, env.single_action_space)
    random, numbers = SlotRandom(SEED, range(cell.num_envs)), count()
    length = fragment_steps(env.single_observation_space)

    def turn() -> int:
        nonlocal latest
        kept = []
        for _ in range(length):
            random.go_to(next(numbers))
            latest, *_ = env.step(policy.act(latest, None, random).actions)
            kept.append(np.asarray(latest))
        return length * cell.num_envs

    return turn


def _use_threads(threads: int) -> None:
    """Of torch: as many as a worker's policy has."""
    import torch

    torch.set_num_threads(threads)


def _receiving(envs: Any, num_envs: int) -> Turn:
    """One partial batch; EnvPool and ClusterEnv have the same two methods."""
    actions = cycle(some_actions(envs.single_action_space, num_envs))

    def turn() -> int:
        *_, infos = envs.recv()
        ready = infos["env_id"]
        envs.send(next(actions)[: len(ready)], ready)
        return len(ready)

    return turn


# Behind ClusterEnv: one worker per host.


@contextmanager
def _behind(cell: Cell, side: Side, way: str, threads: int) -> Iterator[Ready]:
    from clusterenv import ClusterEnv, Limits, LocalLauncher

    hosts = 2 if side is Side.TWO_HOSTS else None
    backend = cell.engine.backend(cell.env, max(1, threads // (hosts or 1)))
    # Whoever is stopped for long is not lost.
    limits = Limits(lease_s=3600.0, step_timeout_s=3600.0)
    batch_size = cell.batch_size if way == RECV else None
    launcher = LocalLauncher(hosts=hosts)
    with ClusterEnv(
        backend, cell.num_envs, launcher=launcher, batch_size=batch_size, limits=limits
    ) as envs:
        if envs.num_workers != (hosts or 1):
            raise RuntimeError(f"{envs.num_workers} workers on {hosts or 1} hosts: one each wanted")
        yield Ready(_turn_behind(cell, way, envs), partial(inside.profiler, envs))


def _turn_behind(cell: Cell, way: str, envs: Any) -> Turn:
    if way == RECV:
        envs.async_reset(seed=SEED)
        return _receiving(envs, cell.num_envs)
    envs.reset(seed=SEED)
    if way == STEP:
        return _stepping_behind(cell, envs)
    observations = envs.single_observation_space
    policy = cell.engine.policy(observations, envs.single_action_space)
    length = fragment_steps(observations)
    return lambda: int(envs.rollout(policy, length).rewards.size)


def _stepping_behind(cell: Cell, envs: Any) -> Turn:
    actions = cycle(some_actions(envs.single_action_space, cell.num_envs))

    def turn() -> int:
        envs.step(next(actions))
        return cell.num_envs

    return turn
