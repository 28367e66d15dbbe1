"""What measuring costs with an image policy, and which bytes move: Pong, a CNN, PPO updates.

    PYTHONPATH=examples:benchmarks python experiments/image_cost.py

The policy does not get to learn Pong here: this is about seconds and bytes per update.
"""

from __future__ import annotations

import time

import numpy as np
import report
import torch
import tyro
from estimator import Stopwatch
from networks import make_network
from torch.distributions import Categorical
from workloads import WORKLOADS

from clusterenv import AdaptiveSync, ClusterEnv, Rollout
from clusterenv.learning import decoupled_loss, gae
from clusterenv.policies.torch import TorchPolicy

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 16, 64, 3, 4


def main(updates: int = 8, rows: int = 16) -> None:
    """Update a few times; seconds and bytes."""
    torch.manual_seed(0)
    workload = WORKLOADS["Pong"]
    rule = AdaptiveSync(0.1, 16, rows=rows)
    with ClusterEnv(
        workload.make, NUM_ENVS, 2, sync=rule, encoding="delta", shared_memory=False
    ) as envs:
        survey = envs._head.surveyor.survey = Stopwatch(envs._head.surveyor.survey)
        shape = envs.single_observation_space.shape
        network = make_network("small CNN", shape, workload.num_actions)
        policy = TorchPolicy(network, _distribution)
        optimizer = torch.optim.Adam(network.parameters(), lr=2.5e-4, eps=1e-5)
        envs.reset(seed=0)
        learn = Stopwatch(_update)
        begun = time.perf_counter()
        for _ in range(updates):
            learn(network, optimizer, envs.rollout(policy, NUM_STEPS))
        seconds = time.perf_counter() - begun
        moved = envs.ledger.bytes_by_kind
        cost, always = survey.seconds / learn.seconds, envs.ledger.bytes_of_always_pulling
        found = {
            "parameters": sum(p.numel() for p in network.parameters()),
            "rows per worker": rows,
            "seconds of measuring / seconds of PPO updates": f"{cost:.4f}",
            "updates, seconds in all": f"{updates}, {seconds:.1f}",
            "pulls of versions": f"{len(envs.ledger.pulls)} of {2 * len(envs.ledger.versions)}",
            "bytes of weights on the socket": f"{moved['Weights']:,}",
            "bytes had every version been pulled in full": f"{always:,}",
            "bytes of fragments, mostly observations": f"{moved['Collected']:,}",
        }
    sections = {"Found": report.facts(found), "Machine": report.facts(report.machine())}
    report.publish("sync_image_cost", sections, {"found": found}, None)


def _distribution(
    network: torch.nn.Module, observations: torch.Tensor
) -> tuple[Categorical, torch.Tensor]:
    logits, values = network(observations)
    return Categorical(logits=logits, validate_args=False), values


def _update(network: torch.nn.Module, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    advantages, returns = gae(rollout, 0.99, 0.95)
    arrays = (
        rollout.observations[:-1],
        rollout.actions,
        rollout.outputs["log_prob"],
        advantages.astype(np.float32),
        returns.astype(np.float32),
    )
    observations, actions, behaviour, advantages, returns = (
        torch.from_numpy(rollout.flatten(array)) for array in arrays
    )
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).tensor_split(MINIBATCHES):
            distribution, values = _distribution(network, observations[rows])
            log_prob = distribution.log_prob(actions[rows])
            old = behaviour[rows]
            loss = decoupled_loss(log_prob, old, old, advantages[rows])
            loss = loss + 0.5 * (values - returns[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    tyro.cli(main)
