"""A recurrent policy learns what no policy without memory can: CartPole without velocities."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from clusterenv import ClusterEnv
from clusterenv.learning import gae
from clusterenv.policies.torch import TorchPolicy

# Learning takes its time where others use the cores as well.
pytestmark = pytest.mark.timeout(400)

HIDDEN = 64
NUM_ENVS, NUM_STEPS, NUM_UPDATES = 256, 32, 20
EPOCHS, MINIBATCHES = 6, 4
GAMMA, GAE_LAMBDA, CLIP, LEARNING_RATE = 0.98, 0.95, 0.2, 5e-3
VALUE_SCALE = 20.0
# The same network without its memory stays below 60 here; 500 is the most there is.
CLEARLY_REMEMBERS = 200


class WithoutVelocities(gym.ObservationWrapper):
    """Shows where cart and pole are, not where they are going."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]] / np.array([0.5, 0.05], np.float32)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, 2), nn.Linear(HIDDEN, 1)

    def forward(self, observations, state):
        hidden = self.cell(observations, state["hidden"])
        return *self.judge(hidden), {"hidden": hidden}

    def judge(self, hidden):
        distribution = Categorical(logits=self.actor(hidden), validate_args=False)
        return distribution, VALUE_SCALE * self.critic(hidden).squeeze(-1)

    def unroll(self, observations, hidden, ended):
        """Distributions and values along [T, n], with the state as it was on the worker."""
        states = []
        for t in range(len(observations)):
            hidden = self.cell(observations[t], hidden)
            states.append(hidden)
            hidden = hidden * ~ended[t, :, None]
        return self.judge(torch.stack(states))


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
            value_loss = ((values - returns[:, columns]) / VALUE_SCALE).square().mean()
            loss = 0.5 * value_loss - surrogate
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()


def test_a_recurrent_policy_learns_cartpole_without_velocities():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = Recurrent()
    policy = TorchPolicy(module, state_shapes={"hidden": (HIDDEN,)})
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    with ClusterEnv("CartPole-v1", NUM_ENVS, 2, wrappers=[WithoutVelocities]) as envs:
        envs.reset(seed=1)
        for update in range(NUM_UPDATES):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / NUM_UPDATES)
            learn(module, optimizer, envs.rollout(policy, NUM_STEPS))
        returns = envs.evaluate(policy, 64, deterministic=False).returns
    assert returns.mean() > CLEARLY_REMEMBERS
