"""The networks that act: the same layers for every system. Imports torch only."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn


class ActorCritic(nn.Module):
    """Logits and a value for each observation; ``body`` is shared and may do nothing."""

    def __init__(self, body: nn.Module, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.body, self.actor, self.critic = body, actor, critic

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, values)."""
        features = self.body(observations)
        return self.actor(features), self.critic(features)

    def logits(self, observations: Tensor) -> Tensor:
        """The actor alone."""
        return self.actor(self.body(observations))


class Scale(nn.Module):
    """Bytes of an image to numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        """As float32."""
        return images.float() / 255


def mlp(observation_shape: tuple[int, ...], num_actions: int) -> ActorCritic:
    """Actor and critic of two tanh layers with 64 units each, nothing shared."""
    inputs = prod(observation_shape)
    return ActorCritic(nn.Identity(), _perceptron(inputs, num_actions), _perceptron(inputs, 1))


def _perceptron(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )


def small_cnn(observation_shape: tuple[int, ...], num_actions: int) -> ActorCritic:
    """Two convolutions and a layer of 256, shared: the network of the first DQN paper."""
    channels = observation_shape[0]
    body = nn.Sequential(*convolutions(channels), nn.Linear(FEATURES, 256), nn.ReLU())
    return ActorCritic(body, nn.Linear(256, num_actions), nn.Linear(256, 1))


FEATURES = 32 * 9 * 9


def convolutions(channels: int) -> list[nn.Module]:
    """From images of 84x84 to ``FEATURES`` numbers."""
    return [
        Scale(),
        nn.Conv2d(channels, 16, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
    ]


def nature_cnn(num_actions: int) -> ActorCritic:
    """1.7 million parameters: three convolutions and a layer of 512, shared."""
    body = nn.Sequential(
        Scale(),
        nn.Conv2d(4, 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
    )
    return ActorCritic(body, nn.Linear(512, num_actions), nn.Linear(512, 1))


NETWORKS: dict[str, Callable[[tuple[int, ...], int], ActorCritic]] = {
    "MLP 64x64": mlp,
    "small CNN": small_cnn,
}


def make_network(name: str, observation_shape: tuple[int, ...], num_actions: int) -> ActorCritic:
    """The same initial weights every time, for all systems."""
    torch.manual_seed(0)
    return NETWORKS[name](observation_shape, num_actions)
