"""Where the time of one ``ClusterEnv.rollout`` goes, from clocks around its parts.

The policy tells the head when it acted on the workers, through an output of its own: processes of
one machine read the same clock. The head's calls are timed from outside.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import inside
import numpy as np
from rollout_systems import Result, Results, change_weights, open_cluster, policy_for
from rollout_tasks import RolloutTask

from clusterenv import Acted, TorchPolicy

NOTES = """\
- From rollouts of a run of their own, in turns with the systems above; means over each run,
  medians over the repeats. The parts add up to the rollout; those on workers are means over them.
- "policy": inside `TorchPolicy.act`, with the values of last observations. "recording": the time
  of `Sampler.collect` outside the policy and the envs, per step as the isolated processes of the
  line "ceiling, recorded" measured it. "envs": what remains between the first and the last act.
- "request and pull": until the first act begins, the new weights being loaded by then. "the slower
  worker": from when the workers are done on average to when the last is. "transfer": from there
  until all arrays are at the head. "assembly": one array [T, N] of the workers' parts.
- "ceiling, same steps": what the bare loops of the ceiling take for as many steps per worker.
"""


_FEWEST_ROLLOUTS = 4


class ClockedPolicy(TorchPolicy):
    """Puts what its clock says into the output ``clock``.

    Its first three numbers are when this call began, how long all earlier calls took together,
    and when the last of them ended.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._busy_s = self._ended = 0.0

    def act(self, observations: Any, state: Any, rng: Any) -> Acted:
        """As TorchPolicy does."""
        begun = perf_counter()
        acted = super().act(observations, state, rng)
        rows = len(acted.outputs["log_prob"])
        clock = np.zeros(max(rows, 3))
        clock[:3] = begun, self._busy_s, self._ended
        acted.outputs["clock"] = clock[:rows]
        self._ended = perf_counter()
        self._busy_s += self._ended - begun
        return acted


class _Watched:
    """Calls a function, and remembers when the last call began and ended."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.begun = self.ended = 0.0

    def __call__(self, *arguments: Any) -> Any:
        self.begun = perf_counter()
        result = self._function(*arguments)
        self.ended = perf_counter()
        return result


def profile_rollout(task: RolloutTask) -> Results:
    """Seconds per rollout: in all, and in each part."""
    with open_cluster(task) as envs:
        policy = policy_for(task, envs, ClockedPolicy)
        envs.publish = publishing = _Watched(envs.publish)
        assembling = inside.wrap_assembly(envs, _Watched)
        while True:
            yield _profile_for(task, envs, policy, publishing, assembling)


def _profile_for(
    task: RolloutTask, envs: Any, policy: ClockedPolicy, publishing: _Watched, assembling: _Watched
) -> Result:
    head: list[tuple[float, ...]] = []
    workers: list[np.ndarray] = []
    rollouts_of_warm_up = 0
    now = begun = perf_counter()
    while (
        now - begun < task.warmup_seconds + task.seconds
        or len(head) < rollouts_of_warm_up + _FEWEST_ROLLOUTS
    ):
        if now - begun < task.warmup_seconds:
            rollouts_of_warm_up = len(head) + 1
        change_weights(policy)
        before = perf_counter()
        rollout = envs.rollout(policy, task.fragment_steps)
        now = perf_counter()
        head.append((before, publishing.ended, assembling.begun, now))
        first_acts = rollout.outputs["clock"][0].reshape(task.workers, -1)
        workers.append(first_acts[:, :3])
    first = rollouts_of_warm_up
    return _parts(np.array(head[first:-1]).T, np.array(workers[first:]))


def _parts(head: np.ndarray, workers: np.ndarray) -> Result:
    """``workers`` has one rollout more than ``head``: it tells when the one before it ended."""
    before, published, arrived, after = head
    began, busy_s, _ = np.moveaxis(workers[:-1], -1, 0)
    _, busy_s_after, ended = np.moveaxis(workers[1:], -1, 0)
    policy_s = (busy_s_after - busy_s).mean(axis=1)
    acting_s = (ended - began).mean(axis=1)
    parts = {
        "rollout_s": after - before,
        "publish_s": published - before,
        "pull_s": began.mean(axis=1) - published,
        "policy_s": policy_s,
        "env_and_recording_s": acting_s - policy_s,
        "slower_worker_s": ended.max(axis=1) - ended.mean(axis=1),
        "transfer_s": arrived - ended.max(axis=1),
        "assembly_s": after - arrived,
    }
    return {name: float(values.mean()) for name, values in parts.items()}


def budget_table(
    task: RolloutTask, parts: Result, ceiling: Result, recorded: Result
) -> tuple[list[str], list[list[str]]]:
    """Each part in milliseconds and as a share of the rollout."""
    turns, whole = task.fragment_steps, parts["rollout_s"]
    recording = turns * (recorded["turn_s"] - recorded["policy_s"] - recorded["env_s"])
    entries = {
        "one rollout": whole,
        "envs": parts["env_and_recording_s"] - recording,
        "policy": parts["policy_s"],
        "recording": recording,
        "publish": parts["publish_s"],
        "request and pull": parts["pull_s"],
        "the slower worker": parts["slower_worker_s"],
        "transfer": parts["transfer_s"],
        "assembly": parts["assembly_s"],
        "ceiling, same steps": turns * ceiling["turn_s"],
        "ceiling: envs": turns * ceiling["env_s"],
        "ceiling: policy": turns * ceiling["policy_s"],
    }
    lines = [
        [name, f"{s * 1e3:.2f}", f"{s / turns * 1e6:.1f}", f"{100 * s / whole:.1f} %"]
        for name, s in entries.items()
    ]
    return ["part", "ms", "µs per step of all envs", "of a rollout"], lines
