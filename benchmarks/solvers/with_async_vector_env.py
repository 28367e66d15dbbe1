"""PPO in one file on AsyncVectorEnv, the way of CleanRL: its loop and its default settings.

The settings are the defaults of CleanRL's ``ppo.py``, which are for CartPole-v1 and 500,000 steps.
It has none for LunarLander: there only the budget, over which the learning rate falls, is larger.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium as gym
import numpy as np
import torch
from goal import Goal, Way
from torch import Tensor, nn
from torch.distributions import Categorical

NUM_ENVS, NUM_STEPS, MINIBATCHES, EPOCHS = 4, 128, 4, 4
LEARNING_RATE, GAMMA, LAMBDA = 2.5e-4, 0.99, 0.95
CLIP, ENTROPY, VALUE, GRADIENT = 0.2, 0.01, 0.5, 0.5
TOTAL_STEPS = {"CartPole-v1": 500_000, "LunarLander-v3": 2_000_000}


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """An orthogonal layer."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64."""
    hidden = layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh()
    return nn.Sequential(*hidden, layer(64, outputs, gain))


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.actor = mlp(inputs, int(envs.single_action_space.n), gain=0.01)
        self.critic = mlp(inputs, 1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        """Which actions, and how good it is to be here."""
        return Categorical(logits=self.actor(observations)), self.critic(observations).squeeze(-1)


class Collector:
    """Steps the envs, one batch of [T, N] at a time."""

    def __init__(self, envs: Any, goal: Goal, way: Way) -> None:
        self.envs, self.way = envs, way
        self.observation = torch.as_tensor(envs.reset(seed=goal.seed)[0])
        self.done = torch.zeros(NUM_ENVS)

    @torch.no_grad()
    def collect(self, agent: Agent) -> list[Tensor]:
        """Observations, actions, log-probs, advantages, returns and values, flattened."""
        kept: list[list[Tensor]] = [[], [], [], [], [], []]
        for _ in range(NUM_STEPS):
            distribution, value = agent(self.observation)
            action = distribution.sample()
            row = (self.observation, action, distribution.log_prob(action), value, self.done)
            observation, reward, terminated, truncated, infos = self.envs.step(action.numpy())
            for column, entry in zip(kept, (*row, torch.as_tensor(reward).float()), strict=True):
                column.append(entry)
            self.observation = torch.as_tensor(observation)
            self.done = torch.as_tensor(np.logical_or(terminated, truncated)).float()
            self.way.has_done(NUM_ENVS, ended_returns(infos))
        observations, actions, log_probs, values, dones, rewards = map(torch.stack, kept)
        advantages = self._advantages(agent, values, dones, rewards)
        batch = observations, actions, log_probs, advantages, advantages + values, values
        return [tensor.flatten(0, 1) for tensor in batch]

    def _advantages(self, agent: Agent, values: Tensor, dones: Tensor, rewards: Tensor) -> Tensor:
        advantages, running = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        next_value, going_on = agent(self.observation)[1], 1 - self.done
        for t in reversed(range(NUM_STEPS)):
            delta = rewards[t] + GAMMA * next_value * going_on - values[t]
            advantages[t] = running = delta + GAMMA * LAMBDA * going_on * running
            next_value, going_on = values[t], 1 - dones[t]
        return advantages


def ended_returns(infos: dict[str, Any]) -> Any:
    """The returns of the episodes that have just ended."""
    return infos["episode"]["r"][infos["_episode"]] if "episode" in infos else ()


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> None:
    """Learn from one batch."""
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch[0])).tensor_split(MINIBATCHES):
            loss = loss_of(agent, *(tensor[rows] for tensor in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), GRADIENT)
            optimizer.step()


def loss_of(
    agent: Agent,
    observations: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    old_values: Tensor,
) -> Tensor:
    """PPO's loss, with a clipped value loss."""
    distribution, values = agent(observations)
    ratio = (distribution.log_prob(actions) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
    near = old_values + (values - old_values).clamp(-CLIP, CLIP)
    worse = torch.max((values - returns).square(), (near - returns).square())
    return policy_loss - ENTROPY * distribution.entropy().mean() + VALUE * 0.5 * worse.mean()


def main() -> None:
    """Train until solved, or to the end of the budget."""
    goal = Goal.from_arguments()
    torch.manual_seed(goal.seed)
    torch.set_num_threads(1)
    way, total_steps = Way(goal), TOTAL_STEPS[goal.env]
    # CleanRL's loop is of a time when the step that ends an episode began the next one. With
    # Gymnasium's new default it would learn from a step after each end that nobody acted in.
    envs = gym.vector.AsyncVectorEnv(
        [lambda: gym.make(goal.env)] * NUM_ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    collector = Collector(envs, goal, way)
    while not way.is_solved and way.steps < total_steps:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - way.steps / total_steps)
        batch = collector.collect(agent)
        if not way.is_solved:
            update(agent, optimizer, batch)
    envs.close()


if __name__ == "__main__":
    main()
