"""Stable-Baselines3's PPO with RL Zoo's hyper-parameters, on SubprocVecEnv or on our adapter."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium as gym
from goal import Goal, Way
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

from clusterenv.adapters.stable_baselines3 import StableBaselines3VecEnv


def falling(initial: float) -> Callable[[float], float]:
    """RL Zoo's ``lin_…``: from ``initial`` to 0 over the run."""
    return lambda left: left * initial


SETTINGS: dict[str, tuple[int, int, dict[str, Any]]] = {
    # Envs, steps in all, PPO's arguments: those of RL Zoo (hyperparams/ppo.yml) for CartPole-v1 and
    # LunarLander-v2, of which v3 is a correction. What is not named is Stable-Baselines3's default.
    "LunarLander-v3": (
        16,
        1_000_000,
        {
            "n_steps": 1024,
            "batch_size": 64,
            "n_epochs": 4,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.01,
        },
    ),
    "CartPole-v1": (
        8,
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "ent_coef": 0.0,
            "learning_rate": falling(0.001),
            "clip_range": falling(0.2),
        },
    ),
}


class Watch(BaseCallback):
    """Ends training once the goal is reached."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._way = way

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        returns = [info["episode"]["r"] for info in infos if "episode" in info]
        return not self._way.has_done(len(infos), returns)


def make_envs(goal: Goal, num_envs: int) -> Any:
    """Either VecEnv, with episode statistics."""
    if "clusterenv" in goal.options:
        return VecMonitor(StableBaselines3VecEnv(goal.env, num_envs))
    return VecMonitor(SubprocVecEnv([lambda: gym.make(goal.env)] * num_envs))


def main() -> None:
    """Train until solved, or to the end of RL Zoo's budget."""
    goal = Goal.from_arguments()
    num_envs, total_steps, arguments = SETTINGS[goal.env]
    way = Way(goal)
    envs = make_envs(goal, num_envs)
    model = PPO("MlpPolicy", envs, seed=goal.seed, device="cpu", **arguments)
    model.learn(total_steps, callback=Watch(way))
    envs.close()


if __name__ == "__main__":
    main()
