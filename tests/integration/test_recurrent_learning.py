"""A recurrent policy learns what no policy without memory can: CartPole without velocities."""

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv
from clusterenv.learning import gae
from clusterenv.policies.torch import TorchPolicy

HIDDEN = 64
NUM_ENVS, NUM_STEPS, NUM_UPDATES = 64, 32, 60
EPOCHS, MINIBATCHES = 6, 4
GAMMA, GAE_LAMBDA, CLIP, ENTROPY_BONUS = 0.99, 0.95, 0.2, 0.01
LEARNING_RATE = 3e-3
# The same network without its memory stays at 40 to 45 here; 500 is the most there is.
CLEARLY_REMEMBERS = 80


class WithoutVelocities(gym.ObservationWrapper):
    """Shows where cart and pole are, not where they are going."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]] / np.array([2.4, 0.2], np.float32)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, 2), nn.Linear(HIDDEN, 1)

    def forward(self, observations, state):
        hidden = self.cell(observations, state["hidden"])
        return self.judge(hidden), self.critic(hidden), {"hidden": hidden}

    def judge(self, hidden):
        return Categorical(logits=self.actor(hidden), validate_args=False)

    def unroll(self, observations, hidden, ended):
        """Distributions and values along [T, n], with the state as it was on the worker."""
        states = []
        for t in range(len(observations)):
            hidden = self.cell(observations[t], hidden)
            states.append(hidden)
            hidden = hidden * ~ended[t, :, None]
        states = torch.stack(states)
        return self.judge(states), self.critic(states).squeeze(-1)


def learn(module, optimizer, rollout):
    advantages, returns = (
        torch.from_numpy(array).float() for array in gae(rollout, GAMMA, GAE_LAMBDA)
    )
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    observations, actions, old_log_probs, ended = map(
        torch.from_numpy,
        (
            rollout.observations[:-1],
            rollout.actions,
            rollout.outputs["log_prob"],
            rollout.terminated | rollout.truncated,
        ),
    )
    first = torch.from_numpy(rollout.state["hidden"])
    for _ in range(EPOCHS):
        for columns in torch.randperm(NUM_ENVS).tensor_split(MINIBATCHES):
            distribution, values = module.unroll(
                observations[:, columns], first[columns], ended[:, columns]
            )
            ratio = (distribution.log_prob(actions[:, columns]) - old_log_probs[:, columns]).exp()
            gain = advantages[:, columns]
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            value_loss = (values - returns[:, columns]).square().mean()
            entropy = distribution.entropy().mean()
            loss = 0.02 * value_loss - surrogate - ENTROPY_BONUS * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()


def train(module, envs, policy):
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, NUM_UPDATES)
    for _ in range(NUM_UPDATES):
        learn(module, optimizer, envs.rollout(policy, NUM_STEPS))
        schedule.step()


def test_a_recurrent_policy_learns_cartpole_without_velocities():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = Recurrent()
    policy = TorchPolicy(module, state_shapes={"hidden": (HIDDEN,)})
    with ClusterEnv("CartPole-v1", NUM_ENVS, 2, wrappers=[WithoutVelocities]) as envs:
        envs.reset(seed=1)
        train(module, envs, policy)
        returns = envs.evaluate(policy, NUM_ENVS, seed=1000).returns
    assert returns.mean() > CLEARLY_REMEMBERS
