"""RLlib's PPO on this machine's cores; run with .venv-rllib's Python (``peers/install.sh``)."""

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from goal import Goal, Way
from ray.rllib.algorithms.callbacks import DefaultCallbacks
from ray.rllib.algorithms.ppo import PPOConfig

CORES = len(os.sched_getaffinity(0))
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # RLlib's own example (examples/algorithms/ppo/cartpole_ppo.py), which expects a return of 450
    # within 300,000 steps. What is not named here is PPOConfig's default there too.
    "CartPole-v1": (
        {"lr": 3e-4, "num_epochs": 6, "vf_loss_coeff": 0.01},
        {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
        500_000,
    ),
    # RLlib has no example of PPO on LunarLander: RL Zoo's settings, as far as they have names here.
    "LunarLander-v3": (
        {
            "lr": 3e-4,
            "num_epochs": 4,
            "gamma": 0.999,
            "lambda_": 0.98,
            "entropy_coeff": 0.01,
            "train_batch_size_per_learner": 16_384,
            "minibatch_size": 64,
            "vf_loss_coeff": 0.5,
            "vf_clip_param": 1e6,
            "grad_clip": 0.5,
            "use_kl_loss": False,
            "clip_param": 0.2,
        },
        {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        1_000_000,
    ),
}


class Returns(DefaultCallbacks):
    """Keeps the return of each episode.

    A sample cuts episodes into chunks, and ``get_return()`` is that of a chunk alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._so_far: defaultdict[str, float] = defaultdict(float)

    def on_sample_end(self, *, metrics_logger: Any, samples: Any, **_: Any) -> None:
        """Log each return by itself: RLlib would only tell a mean."""
        for chunk in samples:
            self._so_far[chunk.id_] += chunk.get_return()
            if chunk.is_done:
                value = self._so_far.pop(chunk.id_)
                metrics_logger.log_value("all_returns", value, reduce="item_series")


def config_for(goal: Goal) -> PPOConfig:
    """An env runner per core, and 16 envs in all, as RL Zoo has them."""
    training, model, _ = SETTINGS[goal.env]
    return (
        PPOConfig()
        .environment(goal.env)
        .env_runners(num_env_runners=CORES, num_envs_per_env_runner=max(1, 16 // CORES))
        .callbacks(Returns)
        .training(**training)
        .rl_module(model_config=model)
        .debugging(seed=goal.seed)
    )


def main() -> None:
    """Train until solved, or to the end of the budget."""
    goal = Goal.from_arguments()
    # A Ray cluster may be there already: its start does not count.
    # One CPU for each env runner, and some for the learner: they are counted, not reserved.
    ray.init(
        num_cpus=CORES + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    way, total_steps = Way(goal), SETTINGS[goal.env][2]
    algorithm = config_for(goal).build_algo()
    while not way.is_solved and way.steps < total_steps:
        told = algorithm.train()["env_runners"]
        returns = told.get("all_returns", [])
        # Of a single episode RLlib tells the number itself.
        returns = returns if isinstance(returns, list) else [returns]
        way.has_done(int(told["num_env_steps_sampled"]), returns)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
