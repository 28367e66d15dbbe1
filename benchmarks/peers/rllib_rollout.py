"""RLlib's EnvRunners, only sampling: run by ``rollout_throughput.py`` with .venv-rllib's Python.

    .venv-rllib/bin/python benchmarks/peers/rllib_rollout.py '{"workload": "CartPole-v1", …}'

For each line on stdin it prints one of JSON with env steps per second. No weights are sent, no
learner runs, and the runners evaluate the actor only, as they do under PPO: all of this is in
RLlib's favour.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
from networks import make_network
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env
from rollout_tasks import RolloutTask, print_rates

BENCHMARKS = str(Path(__file__).resolve().parents[1])
STEPS_PER_RUNNER = 2048


class ActorModule(TorchRLModule):
    """The benchmark's network; the runners ask for the actor's logits only."""

    def setup(self) -> None:
        """Build the layers."""
        network, num_actions = self.model_config["network"], self.model_config["num_actions"]
        self.network = make_network(network, self.observation_space.shape, num_actions)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.network.logits(batch[Columns.OBS])}


def config_for(task: RolloutTask) -> PPOConfig:
    """Fragments of 2048 steps per runner, as in RLlib's own examples, or the task's if shorter."""
    fragment_steps = min(task.fragment_steps, STEPS_PER_RUNNER // task.envs_per_worker)
    register_env("workload", lambda _: task.settings.make())
    model = {"network": task.network, "num_actions": task.settings.num_actions}
    return (
        PPOConfig()
        .environment("workload")
        .env_runners(
            num_env_runners=task.workers,
            num_envs_per_env_runner=task.envs_per_worker,
            rollout_fragment_length=fragment_steps,
            batch_mode="truncate_episodes",
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActorModule, model_config=model))
    )


def main() -> None:
    """Measure and print."""
    task = RolloutTask.from_json(sys.argv[1])
    environment = {"PYTHONPATH": BENCHMARKS, "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=task.workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    runners = EnvRunnerGroup(config=config_for(task), local_env_runner=False)

    def collect() -> int:
        fragments = runners.foreach_env_runner(
            lambda runner: runner.sample(), local_env_runner=False
        )
        if len(fragments) < task.workers:
            raise RuntimeError(f"only {len(fragments)} of {task.workers} runners answered")
        return sum(len(episode) for fragment in fragments for episode in fragment)

    print_rates(collect, task, "ray", "torch", "gymnasium", "numpy")
    runners.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
