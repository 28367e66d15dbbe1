"""Engines that take their seeds when they are made are made again, and never left open."""

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from clusterenv.backends.seeded_when_made import SeededWhenMade
from clusterenv.worker.vector_stepper import VectorStepper
from tests.environments.counting import CounterEnv

SLOTS = (4, 5, 6)


class Engine(VectorEnv):
    """Counts, and can be reset by mask; the class knows how many of them are open."""

    num_open = most_envs_open = 0

    def __init__(self, slots, seeds):
        self.num_envs, self.ages = len(slots), np.zeros((len(slots), 3), np.float32)
        self.single_observation_space = CounterEnv.observation_space
        self.single_action_space = CounterEnv.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        Engine.num_open += self.num_envs
        Engine.most_envs_open = max(Engine.most_envs_open, Engine.num_open)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self.ages[mask] = 0
        return self.ages.copy(), {}

    def step(self, actions):
        self.ages += 1
        no = np.zeros(self.num_envs, np.bool_)
        return self.ages.copy(), np.ones(self.num_envs), no, no, {}

    def close_extras(self, **kwargs):
        Engine.num_open -= self.num_envs


def test_an_engine_that_is_tried_for_a_reset_by_mask_is_small_and_closed_at_once():
    Engine.num_open = Engine.most_envs_open = 0
    stepper = VectorStepper(
        SeededWhenMade(Engine, SLOTS), SLOTS, lambda: SeededWhenMade(Engine, SLOTS[:2])
    )
    assert Engine.num_open == 0
    for _ in range(2):
        stepper.reset(SLOTS, [1, 2, 3], None)
        stepper.step(SLOTS, np.zeros(3, np.int64))
        outcome = stepper.reset(SLOTS[1:2], [None], None)
        assert outcome.observations.tolist() == [[0.0] * 3]
        assert Engine.num_open == len(SLOTS)
    assert Engine.most_envs_open == len(SLOTS) + 2
    stepper.close()
    assert Engine.num_open == 0
