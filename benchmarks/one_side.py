"""One side of ``before_and_after.py``: live envs of one checkout, which run a round when asked.

Only the package's public API is used, so that this fits both sides. While nobody asks, the
workers have nothing to do and sleep.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from checkouts import serve
from rollout_tasks import RolloutTask, rates
from workloads import WORKLOADS, predrawn_actions

WORKERS = 2
# env → envs per worker, steps per fragment
SIZES = {"CartPole-v1": (32, 128), "LunarLander-v3": (32, 128), "Pong": (8, 32)}
Collect = Callable[[], int]


def task_for(workload: str, seconds: float = 0.0, warmup_s: float = 0.0) -> RolloutTask:
    """What both sides do with the workload."""
    network = "linear, every 12th pixel" if workload == "Pong" else "MLP 64x64"
    return RolloutTask(workload, network, WORKERS, *SIZES[workload], seconds, warmup_s)


def open_cluster(task: RolloutTask) -> Any:
    """The one place where a ``ClusterEnv`` is made, should a side need other arguments."""
    import clusterenv

    half = task.num_envs // 2
    return clusterenv.ClusterEnv(task.settings.make, task.num_envs, task.workers, batch_size=half)


@dataclass
class Live:
    """Envs that are there, and a policy for them."""

    envs: Any
    task: RolloutTask
    policy: "ChangingPolicy"


class ChangingPolicy:
    """A policy whose weights differ a little each time, as after an optimiser's step."""

    def __init__(self, task: RolloutTask, envs: Any) -> None:
        from array_policies import policy_for

        self.policy = policy_for(envs.single_observation_space, task.settings.num_actions)
        self._first = {name: array.copy() for name, array in self.policy.weights().items()}
        self._changes = 0

    def change(self) -> Any:
        """The policy, with other weights than before."""
        self._changes += 1
        for name, array in self.policy.weights().items():
            np.multiply(self._first[name], 1 + 0.001 * (self._changes % 8), out=array)
        return self.policy


# Each call takes live envs and a seed, and gives a function that steps and returns how often. At
# its end it waits for all that is under way: then the workers have nothing to do, and sleep.


@contextmanager
def _step(live: Live, seed: int) -> Iterator[Collect]:
    actions = predrawn_actions(live.task.settings.num_actions, live.task.num_envs)
    envs, count = live.envs, 0
    envs.reset(seed=seed)

    def collect() -> int:
        nonlocal count
        count += 1
        envs.step(actions[count % len(actions)])
        return envs.num_envs

    yield collect


@contextmanager
def _half_batches(live: Live, seed: int) -> Iterator[Collect]:
    actions = predrawn_actions(live.task.settings.num_actions, live.task.num_envs // 2)
    envs, count = live.envs, 0
    envs.async_reset(seed=seed)

    def collect() -> int:
        nonlocal count
        count += 1
        *_, info = envs.recv()
        envs.send(actions[count % len(actions)], info["env_id"])
        return len(info["env_id"])

    yield collect
    for _ in range(2):
        envs.recv()


@contextmanager
def _rollout(live: Live, seed: int) -> Iterator[Collect]:
    live.envs.reset(seed=seed)

    def collect() -> int:
        rollout = live.envs.rollout(live.policy.change(), live.task.fragment_steps)
        return int(rollout.rewards.size)

    yield collect


@contextmanager
def _stream(live: Live, seed: int) -> Iterator[Collect]:
    live.envs.reset(seed=seed)
    live.envs.publish(live.policy.change())

    def collect() -> int:
        steps = 0
        # A fragment may be of one worker or of several: new weights after as many steps anyway.
        while steps < live.task.num_envs * live.task.fragment_steps:
            steps += next(fragments).rewards.size
        live.envs.publish(live.policy.change())
        return int(steps)

    with closing(live.envs.stream(live.task.fragment_steps)) as fragments:
        yield collect
    # Waits for the fragments that workers had begun.
    live.envs.reset(seed=seed)


CALLS = {"step": _step, "half": _half_batches, "rollout": _rollout, "stream": _stream}


class Side:
    """Opens the envs of a workload when they are first asked for, and keeps them."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """One round of a call, or how long a start takes."""
        if question["call"] == "start":
            return _start(task_for(question["env"]))
        try:
            return {"steps_per_s": self._round(**question)}
        except BaseException:
            # Whatever went wrong, the next round begins with new envs.
            self._close(question["env"])
            raise

    def _round(self, env: str, call: str, seed: int, seconds: float, warmup_s: float) -> float:
        live = self._live_envs(env)
        with CALLS[call](live, seed) as collect:
            return next(rates(collect, task_for(env, seconds, warmup_s)))

    def _live_envs(self, workload: str) -> Live:
        if workload not in self._live:
            from either_side import assert_package_is_of_this_side

            assert_package_is_of_this_side()
            task = task_for(workload)
            envs = open_cluster(task)
            self._live[workload] = Live(envs, task, ChangingPolicy(task, envs))
        return self._live[workload]

    def _close(self, workload: str) -> None:
        if workload in self._live:
            self._live.pop(workload).envs.close()

    def close(self) -> None:
        """End all workers."""
        for workload in list(self._live):
            self._close(workload)


def _start(task: RolloutTask) -> dict[str, float]:
    """In a fresh process: the package is not imported yet, Gymnasium and NumPy are."""
    begin = perf_counter()
    import clusterenv  # noqa: F401

    imported = perf_counter()
    with closing(open_cluster(task)) as envs:
        envs.reset(seed=0)
        ready = perf_counter()
    return {"start_s": ready - imported, "import_and_start_s": ready - begin}


if __name__ == "__main__":
    assert set(SIZES) == set(WORKLOADS)
    with closing(Side()) as side:
        serve(side.answer)
