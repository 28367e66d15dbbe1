"""A short run of each kind with an installed ClusterEnv, checked against Gymnasium's own envs.

A script for the Python to be tried, which needs nothing but ClusterEnv and its dependencies.
Arguments are the launchers to try; by default all that start processes, and threads.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, LocalLauncher, NumpyPolicy
from clusterenv.distributions import Categorical

NUM_ENVS, NUM_STEPS = 4, 60
LAUNCHERS = {
    "in-process": lambda: "in-process",
    "local": lambda: "local",
    "hosts=2": lambda: LocalLauncher(hosts=2),
}


def distribution(weights, observations):
    return Categorical(observations @ weights["actor"])


def check_steps(envs):
    """Step as long as several episodes take; the numbers must be Gymnasium's."""
    oracle = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS)
    oracle.action_space.seed(1)
    observations, _ = envs.reset(seed=42)
    np.testing.assert_array_equal(observations, oracle.reset(seed=42)[0])
    for _ in range(NUM_STEPS):
        actions = oracle.action_space.sample()
        for ours, theirs in zip(envs.step(actions)[:4], oracle.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    oracle.close()


def check_rollout(envs):
    """Collect with a policy on the workers; log-probabilities must be those of its weights."""
    envs.reset(seed=42)
    weights = {"actor": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)}
    rollout = envs.rollout(NumpyPolicy(distribution, weights), num_steps=NUM_STEPS)
    observations = rollout.observations[:-1]  # the last row is what follows
    assert observations.shape == (NUM_STEPS, NUM_ENVS, 4), observations.shape
    rows = distribution(weights, observations.reshape(-1, 4))
    expected = rows.log_prob(rollout.actions.reshape(-1)).reshape(NUM_STEPS, NUM_ENVS)
    np.testing.assert_allclose(rollout.outputs["log_prob"], expected, atol=1e-5)


def main():
    for name in sys.argv[1:] or LAUNCHERS:
        with ClusterEnv("CartPole-v1", NUM_ENVS, launcher=LAUNCHERS[name](), num_workers=2) as envs:
            check_steps(envs)
            check_rollout(envs)
        print(f"{name}: ok")


if __name__ == "__main__":
    main()
