"""What a learner does between two publishes; each function gives something to call."""

from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Any

LEARNING_S = 0.1


def _sleep(policy: Any) -> Callable[[], None]:
    return partial(sleep, LEARNING_S)


def _train_cnn(policy: Any) -> Callable[[], None]:
    import torch

    return _train(policy.module, torch.zeros(16, 4, 84, 84))


def _train_mlp(policy: Any) -> Callable[[], None]:
    import torch
    from networks import mlp

    return _train(mlp((8,), 4), torch.zeros(256, 8))


def _train(network: Any, observations: Any) -> Callable[[], None]:
    import torch

    optimiser = torch.optim.SGD(network.parameters(), lr=1e-6)

    def learn() -> None:
        deadline = perf_counter() + LEARNING_S
        while perf_counter() < deadline:
            logits, values = network(observations)
            (logits.logsumexp(-1).mean() + values.square().mean()).backward()
            optimiser.step()
            optimiser.zero_grad()

    return learn


def _hold_the_gil(policy: Any) -> Callable[[], None]:
    def learn() -> None:
        deadline, total = perf_counter() + LEARNING_S, 0
        while perf_counter() < deadline:
            for number in range(1000):
                total += number * number

    return learn


LEARNERS: dict[str, Callable[[Any], Callable[[], None]]] = {
    "idle": _sleep,
    "torch, CNN": _train_cnn,
    "torch, MLP": _train_mlp,
    "Python": _hold_the_gil,
}
