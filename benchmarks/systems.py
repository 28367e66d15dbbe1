"""The systems under measurement: each function steps one workload and yields its rate, for ever.

A rate counts slot-steps: ``num_envs`` per vector step. Under Gymnasium's default ``NEXT_STEP``
autoreset a reset takes the place of one of them, so the ceiling reports its resets as well.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import numpy as np
from bare_head import BareHead
from bare_lockstep import Meeting, turns_per_second
from isolated import in_isolated_processes
from workloads import WORKLOADS, Workload, predrawn_actions

Result = dict[str, float]
Results = Iterator[Result]


@dataclass(frozen=True)
class Task:
    """What to step, and for how long. ``null`` steps the workload's null twin instead."""

    workload: str
    num_envs: int
    workers: int
    seconds: float
    warmup_seconds: float = 0.5
    null: bool = False

    @property
    def settings(self) -> Workload:
        """The workload by its name."""
        return WORKLOADS[self.workload]

    @property
    def make(self) -> Callable[[], gym.Env[Any, Any]]:
        """The function that builds one env."""
        make = self.settings.null_twin if self.null else self.settings.make
        if make is None:
            raise ValueError(f"{self.workload} has no null twin")
        return make

    def action_rows(self) -> Iterator[np.ndarray]:
        """Endless rows of actions, one per vector step."""
        return cycle(predrawn_actions(self.settings.num_actions, self.num_envs))


@dataclass(frozen=True)
class Loop:
    """What one bare loop measured."""

    num_envs: int
    turn_seconds: np.ndarray
    """Of each turn over all its envs, resets included."""
    resets: int
    cpu_seconds: float


def step_ceiling(task: Task) -> Results:
    """Bare loops in ``task.workers`` processes that share nothing but the starting gun."""
    arguments = [(task, slots) for slots in _shares(task)]
    for loops in in_isolated_processes(_bare_loop_process, arguments):
        yield _sum_of_loops(loops)


def step_ceiling_in_lockstep(task: Task) -> Results:
    """The same bare loops, but each turn begins for all when the last has ended the one before."""
    meeting = Meeting(task.workers)
    arguments = [(task, slots, meeting, place) for place, slots in enumerate(_shares(task))]
    for rates in in_isolated_processes(_bare_lockstep_process, arguments):
        rate = float(np.mean(rates))
        yield {"steps_per_s": task.num_envs * rate, "turn_s": 1 / rate}


def _shares(task: Task) -> list[np.ndarray]:
    """The slots of each process."""
    return np.array_split(np.arange(task.num_envs), task.workers)


def _bare_loop_process(task: Task, slots: np.ndarray) -> Iterator[Loop | None]:
    turn = _turn_over_bare_envs(task, slots)
    yield None
    while True:
        _bare_loop(turn, len(slots), task.warmup_seconds)
        yield _bare_loop(turn, len(slots), task.seconds)


def _bare_lockstep_process(
    task: Task, slots: np.ndarray, meeting: Meeting, place: int
) -> Iterator[float | None]:
    turn = _turn_over_bare_envs(task, slots)
    yield None
    while True:
        turns_per_second(turn, meeting, place, task.warmup_seconds)
        yield turns_per_second(turn, meeting, place, task.seconds)


def _turn_over_bare_envs(task: Task, slots: np.ndarray) -> Callable[[], int]:
    """Steps all envs once, and resets each whose episode ends; the number of resets.

    Each slot has the seed and the actions that it has in the other systems, and so its own: were
    all processes to step the same envs, their episodes would end at once, and none would wait.
    """
    envs = [task.make() for _ in slots]
    actions = predrawn_actions(task.settings.num_actions, task.num_envs)
    rows = cycle([list(row[slots]) for row in actions])
    for slot, env in zip(slots, envs, strict=True):
        env.reset(seed=int(slot))

    def turn() -> int:
        resets = 0
        for env, action in zip(envs, next(rows), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
                resets += 1
        return resets

    return turn


def _bare_loop(turn: Callable[[], int], num_envs: int, seconds: float) -> Loop:
    """Take turns until the time is over."""
    resets = 0
    cpu_start = process_time()
    times = [perf_counter()]
    deadline = times[0] + seconds
    while times[-1] < deadline:
        resets += turn()
        times.append(perf_counter())
    return Loop(num_envs, np.diff(times), resets, process_time() - cpu_start)


def _sum_of_loops(loops: list[Loop]) -> Result:
    seconds = np.array([loop.turn_seconds.sum() for loop in loops])
    steps = np.array([loop.num_envs * len(loop.turn_seconds) for loop in loops])
    return {
        "steps_per_s": float((steps / seconds).sum()),
        "resets_per_s": float(([loop.resets for loop in loops] / seconds).sum()),
        "turn_s": float(np.mean([loop.turn_seconds.mean() for loop in loops])),
        "cpu_share": float(np.mean([loop.cpu_seconds for loop in loops] / seconds)),
    }


def step_bare_head(task: Task) -> Results:
    """Bare loops in lockstep that a head gives actions, and takes results from."""
    with closing(BareHead(task.make, _shares(task))) as envs:
        yield from _timed(envs.step, task, slots_per_call=task.num_envs)


def step_sync(task: Task) -> Results:
    """Gymnasium's ``SyncVectorEnv``: all envs in this process."""
    return _lockstep(gym.vector.SyncVectorEnv([task.make] * task.num_envs), task)


def step_async(task: Task) -> Results:
    """Gymnasium's ``AsyncVectorEnv`` with its defaults: one process per env."""
    return _lockstep(gym.vector.AsyncVectorEnv([task.make] * task.num_envs), task)


def step_sb3(task: Task) -> Results:
    """Stable-Baselines3's ``SubprocVecEnv``: one process per env, same-step autoreset."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Its default, forkserver, imports torch once per env: minutes at 256. The steps are the same.
    with closing(SubprocVecEnv([task.make] * task.num_envs, start_method="fork")) as envs:
        envs.seed(0)
        envs.reset()
        yield from _timed(envs.step, task, slots_per_call=task.num_envs)


def _lockstep(envs: gym.vector.VectorEnv[Any, Any, Any], task: Task) -> Results:
    with closing(envs):
        envs.reset(seed=0)
        yield from _timed(envs.step, task, slots_per_call=task.num_envs)


def _timed(step: Callable[[np.ndarray], Any], task: Task, slots_per_call: int) -> Results:
    rows = (row[:slots_per_call] for row in task.action_rows())
    while True:
        _calls_per_second(step, rows, task.warmup_seconds)
        rate = _calls_per_second(step, rows, task.seconds)
        yield {"steps_per_s": rate * slots_per_call}


def _calls_per_second(
    step: Callable[[np.ndarray], Any], rows: Iterator[np.ndarray], seconds: float
) -> float:
    calls = 0
    now = start = perf_counter()
    while now - start < seconds:
        step(next(rows))
        calls += 1
        now = perf_counter()
    return calls / (now - start)


def open_cluster(task: Task, **options: Any) -> Any:
    """A ``ClusterEnv`` for the task."""
    import clusterenv

    return clusterenv.ClusterEnv(task.make, task.num_envs, task.workers, **options)


def step_cluster_shm(task: Task) -> Results:
    """``ClusterEnv`` in lockstep, arrays through shared memory: the default."""
    return _lockstep(open_cluster(task), task)


def step_cluster_tcp(task: Task) -> Results:
    """``ClusterEnv`` in lockstep, arrays through an encrypted tcp loopback connection."""
    return _lockstep(open_cluster(task, shared_memory=False), task)


def step_cluster_partial(task: Task) -> Results:
    """``ClusterEnv`` in batches of the first half of the slots that are ready."""
    batch_size = max(1, task.num_envs // 2)
    with closing(open_cluster(task, batch_size=batch_size)) as envs:
        envs.async_reset()

        def answer_next_batch(actions: np.ndarray) -> None:
            *_, info = envs.recv()
            envs.send(actions, info["env_id"])

        yield from _timed(answer_next_batch, task, slots_per_call=batch_size)


SYSTEMS: dict[str, Callable[[Task], Results]] = {
    "ceiling": step_ceiling,
    "ceiling-lockstep": step_ceiling_in_lockstep,
    "bare-head": step_bare_head,
    "sync": step_sync,
    "async": step_async,
    "sb3": step_sb3,
    "cluster-shm": step_cluster_shm,
    "cluster-tcp": step_cluster_tcp,
    "cluster-partial": step_cluster_partial,
}

PROCESS_PER_ENV = {"async", "sb3"}
