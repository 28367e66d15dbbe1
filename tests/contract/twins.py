"""A vector env and its oracle, given the same calls; every answer must be the same."""

from copy import deepcopy

import numpy as np
from gymnasium.vector import AutoresetMode

from tests.equality import assert_same


class Twins:
    """Drives both envs and compares what they return.

    `comparable` may replace an answer before the comparison, to leave out wall-clock times.
    """

    def __init__(self, cluster, oracle, comparable=lambda answer: answer):
        self.cluster = cluster
        self.oracle = oracle
        self.comparable = comparable
        self.seed_actions(0)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.cluster.close()
        self.oracle.close()

    def assert_same_spaces(self):
        for name in ("observation_space", "action_space"):
            for attribute in (name, f"single_{name}"):
                actual, expected = (getattr(env, attribute) for env in (self.cluster, self.oracle))
                assert type(actual) is type(expected), attribute
                assert actual == expected, attribute

    def seed_actions(self, seed):
        self.cluster.action_space.seed(seed)
        self.oracle.action_space.seed(seed)

    def reset(self, seed=None, options=None):
        """Reset both, each with its own copy of the options: Gymnasium pops the mask from them."""
        actual, expected = (
            self.comparable(env.reset(seed=seed, options=deepcopy(options)))
            for env in (self.cluster, self.oracle)
        )
        assert_same(actual, expected, "reset")

    def step(self):
        """Step both with a sampled action; return the slots whose episode ended."""
        actions = self.cluster.action_space.sample()
        assert_same(actions, self.oracle.action_space.sample(), "action")
        actual, expected = (
            self.comparable(env.step(deepcopy(actions))) for env in (self.cluster, self.oracle)
        )
        assert_same(actual, expected, "step")
        return np.logical_or(expected[2], expected[3])

    def run(self, steps):
        """Step both; where autoreset is disabled, reset the slots that have ended."""
        for _ in range(steps):
            ended = self.step()
            disabled = self.oracle.metadata["autoreset_mode"] == AutoresetMode.DISABLED
            if disabled and ended.any():
                self.reset(options={"reset_mask": ended})
