"""CleanRL's PPO loop as it is, with `step(actions)`: one line differs from AsyncVectorEnv.

python examples/ppo_lockstep.py                             # CartPole-v1, 200 k steps
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from launching import LauncherName, make_launcher
from torch import Tensor, nn
from torch.distributions import Categorical

import clusterenv
from clusterenv.logging import Progress, TensorBoardLog


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """the Gymnasium id; a discrete action space"""
    num_envs: int = 16
    """environments on all workers together"""
    num_workers: int | None = None
    """worker processes; by default one per core"""
    launcher: LauncherName = "local"
    """where the workers run"""
    num_steps: int = 128
    """steps of each environment per update"""
    total_steps: int = 200_000
    """environment steps in all"""
    learning_rate: float = 1e-3
    """of Adam; it falls to 0"""
    update_epochs: int = 4
    """how often each batch is gone through"""
    num_minibatches: int = 8
    """per epoch"""
    gamma: float = 0.99
    """discount per step"""
    gae_lambda: float = 0.95
    """of the generalised advantage estimate"""
    clip_coef: float = 0.2
    """how far the probability ratio may leave 1"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are cut to this norm"""
    seed: int = 1
    """of envs, exploration, initial weights and minibatches"""
    out: Path = Path("runs/ppo_lockstep")
    """where the TensorBoard file goes"""


class Agent(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.actor = self._mlp(inputs, int(envs.single_action_space.n))
        self.critic = self._mlp(inputs, 1)

    @staticmethod
    def _mlp(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        distribution = Categorical(logits=self.actor(observations), validate_args=False)
        return distribution, self.critic(observations).squeeze(-1)


def estimate_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor, args: Args
) -> Tensor:
    deltas = rewards + args.gamma * next_values - values
    advantages, running = torch.zeros_like(rewards), torch.zeros(args.num_envs)
    for t in reversed(range(args.num_steps)):
        running = deltas[t] + args.gamma * args.gae_lambda * ~ended[t] * running
        advantages[t] = running
    return advantages


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, batch: list[Tensor], args: Args
) -> dict[str, float]:
    """Learn from one batch; what TensorBoard shows of it."""
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(batch[0])).tensor_split(args.num_minibatches):
            observations, actions, log_probs, advantages, returns = (t[rows] for t in batch)
            distribution, values = agent(observations)
            log_ratio = distribution.log_prob(actions) - log_probs
            ratio = log_ratio.exp()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
            value_loss = 0.5 * (values - returns).square().mean()
            entropy = distribution.entropy().mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
    return {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "approx_kl": (ratio - 1 - log_ratio).mean().item(),
    }


def main(args: Args) -> float:
    """Train; the mean return of the last episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    # Before: envs = gym.make_vec(args.env_id, args.num_envs, "async")
    envs = clusterenv.ClusterEnv(
        args.env_id, args.num_envs, args.num_workers, launcher=make_launcher(args.launcher)
    )
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)

    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape = (args.num_steps, args.num_envs)
    observations = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions = torch.zeros(shape, dtype=torch.int64)
    log_probs, rewards, values = torch.zeros(3, *shape)
    terminated, ended, is_filler = torch.zeros(3, *shape, dtype=torch.bool)

    log = TensorBoardLog(args.out)
    with (
        closing(envs),
        Progress(args.total_steps, "PPO, lockstep", logs=[log], hyperparameters=args) as progress,
    ):
        observation = torch.from_numpy(envs.reset(seed=args.seed)[0])
        just_ended = torch.zeros(args.num_envs, dtype=torch.bool)
        while progress.step < args.total_steps:
            left = 1 - progress.step / args.total_steps
            optimizer.param_groups[0]["lr"] = left * args.learning_rate
            episodes: list[tuple[float, int]] = []
            for t in range(args.num_steps):
                # Gymnasium's default, NEXT_STEP: the step after an episode's end ignores its
                # action and returns the next episode's first observation. It is no transition.
                observations[t], is_filler[t] = observation, just_ended
                with torch.no_grad():
                    distribution, values[t] = agent(observation)
                    actions[t] = distribution.sample()
                    log_probs[t] = distribution.log_prob(actions[t])
                array, reward, terminations, truncations, infos = envs.step(actions[t].numpy())
                observation, rewards[t] = torch.from_numpy(array), torch.from_numpy(reward)
                terminated[t] = torch.from_numpy(terminations)
                ended[t] = just_ended = torch.from_numpy(terminations | truncations)
                if "episode" in infos:
                    done, stats = infos["_episode"], infos["episode"]
                    episodes += zip(stats["r"][done], stats["l"][done], strict=True)
            progress.stepped(args.num_steps * args.num_envs, episodes)

            with torch.no_grad():
                # With NEXT_STEP, the observation after an episode's end is its true last one:
                # its value is the right one where the episode was truncated.
                next_values = torch.cat([values[1:], agent(observation)[1][None]]) * ~terminated
            advantages = estimate_advantages(rewards, values, next_values, ended, args)
            columns = (observations, actions, log_probs, advantages, advantages + values)
            batch = [column[~is_filler] for column in columns]
            scalars = update(agent, optimizer, batch, args)
            progress.learned(learning_rate=optimizer.param_groups[0]["lr"], **scalars)
    print(f"{args.env_id}: mean return {progress.mean_return:.1f} of the last episodes")
    return progress.mean_return


if __name__ == "__main__":
    main(tyro.cli(Args))
