"""TorchRL's multi-process collector: run by ``rollout_throughput.py`` with .venv-torchrl's Python.

    .venv-torchrl/bin/python benchmarks/peers/torchrl_rollout.py '{"workload": "CartPole-v1", …}'

Prints one JSON line with env steps per second. No weights are sent, no learner runs.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
from networks import make_network  # noqa: E402
from rollout_tasks import RolloutTask, print_result, steps_per_second  # noqa: E402
from tensordict.nn import TensorDictModule, TensorDictSequential  # noqa: E402
from torch.distributions import Categorical  # noqa: E402
from torchrl.collectors import MultiSyncCollector  # noqa: E402
from torchrl.envs import EnvBase, GymWrapper, SerialEnv  # noqa: E402
from torchrl.modules import ProbabilisticActor  # noqa: E402


def make_envs(task: RolloutTask) -> EnvBase:
    """A worker's share of the envs, one after the other in its own process."""
    return SerialEnv(
        task.envs_per_worker,
        lambda: GymWrapper(task.settings.make(), categorical_action_encoding=True),
    )


def make_policy(task: RolloutTask) -> TensorDictSequential:
    """Actor and critic in one pass, then a sample with its log-probability."""
    env = task.settings.make()
    network = make_network(task.network, env.observation_space.shape, task.settings.num_actions)
    env.close()
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits", "state_value"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def main() -> None:
    """Measure and print."""
    task = RolloutTask.from_json(sys.argv[1])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    collector = MultiSyncCollector(
        [lambda: make_envs(task)] * task.workers,
        make_policy(task),
        frames_per_batch=task.num_envs * task.fragment_steps,
        total_frames=-1,
        cat_results="stack",
    )
    batches: Any = iter(collector)
    rate = steps_per_second(lambda: next(batches).numel(), task)
    collector.shutdown()
    print_result(rate, "torchrl", "tensordict", "torch", "gymnasium", "numpy")


if __name__ == "__main__":
    main()
