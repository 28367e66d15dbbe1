"""What VectorEnvs say, and what becomes of it where slots are not what they count."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv.worker.vector_stepper import VectorStepper
from tests.environments.sampling import SpaceEnv

SLOTS = (4, 5, 6)
ACTIONS = np.zeros(len(SLOTS), np.int64)
SPACE = Tuple((Box(-1.0, 1.0, (2,), np.float64), Discrete(5)))


def make():
    return SpaceEnv(SPACE, Discrete(2), 2)


class Numbered(SyncVectorEnv):
    """Says these numbers in every step."""

    numbers = np.arange(3)

    def step(self, actions):
        *result, infos = super().step(actions)
        return *result, {**infos, "env_id": self.numbers}


@pytest.mark.parametrize("method", ["step", "step_for_rollout"])
@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([0, 1, 2], [4, 5, 6]), ([2, 0, 0], [6, 4, 4]), ([7, 8, 9], [7, 8, 9]), ([-1, 0, 1],) * 2],
)
def test_numbers_that_count_envs_become_slots_and_others_stay(method, numbers, expected):
    stepper = VectorStepper(Numbered([make] * 3), SLOTS)
    stepper._env.numbers = np.array(numbers, np.int32)
    stepper.reset(SLOTS, [0] * 3, None)
    infos = getattr(stepper, method)(SLOTS, ACTIONS).infos
    assert infos.tree["env_id"].tolist() == expected
    assert infos.tree["env_id"].dtype == np.int32


class Batching(SyncVectorEnv):
    """Final observations are a batch, as those of native engines are: a tuple of arrays."""

    def step(self, actions):
        *result, infos = super().step(actions)
        if "final_obs" in infos:
            empty = (np.zeros(2), 0)
            finals = [empty if one is None else one for one in infos["final_obs"]]
            infos["final_obs"] = tuple(np.stack(column) for column in zip(*finals))
        return *result, infos


def test_final_observations_of_a_tuple_space_are_those_of_gymnasiums_own():
    envs = [kind([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP) for kind in BOTH]
    stepper = VectorStepper(envs[0], SLOTS)
    stepper.reset(SLOTS, [1, 2, 3], None)
    envs[1].reset(seed=1)
    num_seen = 0
    for _ in range(4):
        outcome, expected = stepper.step(SLOTS, ACTIONS), envs[1].step(ACTIONS)[-1]
        for row in np.flatnonzero(expected.get("_final_obs", ())):
            num_seen += 1
            first, second = outcome.infos.tree["final_obs"][row]
            np.testing.assert_array_equal(first, expected["final_obs"][row][0])
            assert second == expected["final_obs"][row][1]
    assert num_seen


BOTH = (Batching, SyncVectorEnv)
