"""TorchRL's multi-process collector: run by ``rollout_throughput.py`` with .venv-torchrl's Python.

    .venv-torchrl/bin/python benchmarks/peers/torchrl_rollout.py '{"workload": …}' serial

For each line on stdin it prints one of JSON with env steps per second. No weights are sent, no
learner runs. "serial" puts TorchRL envs into a ``SerialEnv``, as its manual does; "vector" wraps
one Gymnasium vector env.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gymnasium as gym
import torch
from networks import make_network
from rollout_tasks import RolloutTask, print_rates
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch.distributions import Categorical
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import EnvBase, GymWrapper, SerialEnv
from torchrl.modules import ProbabilisticActor


def serial_envs(task: RolloutTask) -> EnvBase:
    """A worker's share of the envs, each an env of TorchRL."""
    return SerialEnv(
        task.envs_per_worker,
        lambda: GymWrapper(task.settings.make(), categorical_action_encoding=True),
    )


def vector_envs(task: RolloutTask) -> EnvBase:
    """A worker's share of the envs as one vector env, with the autoreset that TorchRL prefers."""
    makers = [task.settings.make] * task.envs_per_worker
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    return GymWrapper(envs, categorical_action_encoding=True)


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
    make_envs = {"serial": serial_envs, "vector": vector_envs}[sys.argv[2]]
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
    packages = "torchrl", "tensordict", "torch", "gymnasium", "numpy"
    print_rates(lambda: next(batches).numel(), task, *packages)
    collector.shutdown()


if __name__ == "__main__":
    main()
