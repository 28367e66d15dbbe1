"""The systems under measurement: each lets one network act in one workload's envs.

A rate counts real transitions: rows with an observation, an action and what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import numpy as np
from isolated import in_isolated_processes
from rollout_tasks import RolloutTask, rates

Result = dict[str, float]
Results = Iterator[Result]


@dataclass
class Turns:
    """What an isolated loop measured; a turn is one step of all envs of a process."""

    turns: int
    num_envs: int
    wall_seconds: float
    policy_seconds: float
    env_seconds: float
    cpu_seconds: float


def policy_for(task: RolloutTask, env: Any, kind: type[Any] | None = None) -> Any:
    """The network as a ``TorchPolicy``, or a ``kind`` of it, written as a user would."""
    import torch
    from networks import make_network

    from clusterenv import TorchPolicy
    from clusterenv.distributions import Categorical

    space = getattr(env, "single_observation_space", env.observation_space)
    network = make_network(task.network, space.shape, task.settings.num_actions)

    def distribution(module: Any, observations: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        logits, values = module(observations)
        return Categorical(logits), values

    return (kind or TorchPolicy)(network, distribution)


def copy_for_worker(policy: Any) -> Any:
    """What acts on a worker: it comes there by pickle."""
    import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(policy))


# The ceiling.


def roll_ceiling(task: RolloutTask) -> Results:
    """Bare loops: the policy acts, the envs step, nothing is kept, nobody is told."""
    yield from _isolated(_bare_loop_process, task)


def roll_recorded(task: RolloutTask) -> Results:
    """The same with ClusterEnv's own ``Sampler``: fragments are made, and thrown away."""
    yield from _isolated(_sampler_process, task)


def _isolated(process: Callable[..., Iterator[Turns | None]], task: RolloutTask) -> Results:
    for loops in in_isolated_processes(process, [(task,)] * task.workers):
        yield {
            "steps_per_s": sum(loop.turns * loop.num_envs / loop.wall_seconds for loop in loops),
            "turn_s": _mean(loop.wall_seconds / loop.turns for loop in loops),
            "policy_s": _mean(loop.policy_seconds / loop.turns for loop in loops),
            "env_s": _mean(loop.env_seconds / loop.turns for loop in loops),
            "cpu_share": _mean(loop.cpu_seconds / loop.wall_seconds for loop in loops),
        }


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def _act_like_a_worker() -> None:
    import torch

    torch.set_num_threads(1)


def _bare_loop_process(task: RolloutTask) -> Iterator[Turns | None]:
    from clusterenv.randomness import SlotRandom

    _act_like_a_worker()
    envs = [task.settings.make() for _ in range(task.envs_per_worker)]
    policy = copy_for_worker(policy_for(task, envs[0]))
    rng = SlotRandom(0, range(len(envs)))
    observations = np.stack([env.reset(seed=slot)[0] for slot, env in enumerate(envs)])
    yield None
    while True:
        _bare_loop(envs, policy, rng, observations, task.warmup_seconds)
        yield _bare_loop(envs, policy, rng, observations, task.seconds)


def _bare_loop(
    envs: list[gym.Env[Any, Any]], policy: Any, rng: Any, observations: np.ndarray, seconds: float
) -> Turns:
    turns, policy_seconds = 0, 0.0
    cpu_start = process_time()
    now = start = perf_counter()
    while now - start < seconds:
        rng.go_to(turns)
        actions = policy.act(observations, None, rng).actions
        acted = perf_counter()
        for slot, (env, action) in enumerate(zip(envs, actions, strict=True)):
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                observation, _ = env.reset()
            observations[slot] = observation
        policy_seconds += acted - now
        now = perf_counter()
        turns += 1
    wall, cpu = now - start, process_time() - cpu_start
    return Turns(turns, len(envs), wall, policy_seconds, wall - policy_seconds, cpu)


class _Stopwatch:
    """Calls a function, and adds up the time that it takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        before = perf_counter()
        result = self._function(*arguments)
        self.seconds += perf_counter() - before
        return result


def _sampler_process(task: RolloutTask) -> Iterator[Turns | None]:
    from gymnasium.vector import AutoresetMode

    from clusterenv.memory.part_times import PartTimes
    from clusterenv.worker.sampler import Sampler
    from clusterenv.worker.stepper import EnvStepper
    from clusterenv.worker.translator import Translator

    _act_like_a_worker()
    slots = tuple(range(task.envs_per_worker))
    envs = [task.settings.make() for _ in slots]
    policy = copy_for_worker(policy_for(task, envs[0]))
    stepper = EnvStepper(envs, slots, AutoresetMode.NEXT_STEP, notes=[0])
    translator = Translator(envs[0].observation_space, envs[0].action_space)
    sampler = Sampler(stepper, slots, translator, lambda: None, PartTimes.unshared())
    current = stepper.reset(slots, slots, None)
    policy.act = acting = _Stopwatch(policy.act)
    stepper.step_for_rollout = stepping = _Stopwatch(stepper.step_for_rollout)

    def collect_for(seconds: float) -> Turns:
        nonlocal current
        fragments = 0
        acting.seconds = stepping.seconds = 0.0
        cpu_start = process_time()
        now = start = perf_counter()
        while now - start < seconds:
            _, current = sampler.collect(policy, current, task.fragment_steps)
            fragments += 1
            now = perf_counter()
        wall, cpu = now - start, process_time() - cpu_start
        turns = fragments * task.fragment_steps
        return Turns(turns, len(envs), wall, acting.seconds, stepping.seconds, cpu)

    yield None
    while True:
        collect_for(task.warmup_seconds)
        yield collect_for(task.seconds)


# ClusterEnv.


@contextmanager
def open_cluster(task: RolloutTask, **options: Any) -> Iterator[Any]:
    """A ``ClusterEnv`` for the task."""
    import clusterenv

    envs = clusterenv.ClusterEnv(task.settings.make, task.num_envs, task.workers, **options)
    with closing(envs):
        envs.reset(seed=0)
        yield envs


def change_weights(policy: Any) -> None:
    """As an optimiser would: every number a little, in place."""
    import torch

    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(0.999)


def _rollout(task: RolloutTask, shared_memory: bool) -> Results:
    with open_cluster(task, shared_memory=shared_memory) as envs:
        policy = policy_for(task, envs)

        def collect() -> int:
            change_weights(policy)
            return int(envs.rollout(policy, task.fragment_steps).rewards.size)

        yield from _as_results(rates(collect, task))


def _as_results(rates: Iterator[float]) -> Results:
    for rate in rates:
        yield {"steps_per_s": rate}


def _stream(task: RolloutTask, shared_memory: bool) -> Results:
    with open_cluster(task, shared_memory=shared_memory) as envs:
        policy = policy_for(task, envs)
        envs.publish(policy)
        fragments = envs.stream(task.fragment_steps)

        def collect() -> int:
            steps = 0
            # A fragment may be of one worker or of several.
            while steps < task.num_envs * task.fragment_steps:
                steps += int(next(fragments).rewards.size)
            change_weights(policy)
            envs.publish(policy)
            return steps

        with closing(fragments):
            yield from _as_results(rates(collect, task))


def roll_cluster_shm(task: RolloutTask) -> Results:
    """``rollout`` of local workers as they start by default, new weights each time."""
    return _rollout(task, shared_memory=True)


def roll_cluster_tcp(task: RolloutTask) -> Results:
    """``rollout`` of one host behind an encrypted tcp connection, new weights each time."""
    return _rollout(task, shared_memory=False)


def stream_cluster_shm(task: RolloutTask) -> Results:
    """``stream``, new weights after as many steps as a rollout has."""
    return _stream(task, shared_memory=True)


def stream_cluster_tcp(task: RolloutTask) -> Results:
    """``stream`` of one host behind an encrypted tcp connection."""
    return _stream(task, shared_memory=False)


SYSTEMS: dict[str, Callable[[RolloutTask], Results]] = {
    "ceiling": roll_ceiling,
    "recorded": roll_recorded,
    "rollout-shm": roll_cluster_shm,
    "rollout-tcp": roll_cluster_tcp,
    "stream-shm": stream_cluster_shm,
    "stream-tcp": stream_cluster_tcp,
}
