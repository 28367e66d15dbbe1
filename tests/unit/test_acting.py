"""A worker acts with what its host has put there, and says which version that is."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.distributions import Categorical
from clusterenv.memory.part_times import PartTimes
from clusterenv.memory.weights import WeightStore
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Evaluate, Newest
from clusterenv.worker.acting import Acting, Workplace
from clusterenv.worker.stepper import EnvStepper
from tests.environments.counting import CounterEnv

SLOTS = (4, 7)


def favourite(weights, observations):
    """Always the action that the weights say."""
    logits = np.full((len(observations), 3), -np.inf)
    logits[:, int(weights["action"][0])] = 0.0
    return Categorical(logits)


def policy(action):
    return NumpyPolicy(favourite, {"action": np.array([action], np.int64)})


def introduction(policy_id, action=0):
    """A policy as it travels, with the weights that it had when it was published first."""
    own = policy(action)
    layout = encode_layout(Snapshot(own.weights()).layout)
    return TakePolicy(policy_id, pickle.dumps(own), layout)


def vector(action):
    return Snapshot(policy(action).weights()).vector


class Scene:
    """A worker's acting, and the weights that its host has put there."""

    def __init__(self):
        self.weights, self.evaluation_weights = WeightStore.create(), WeightStore.create()
        self.envs_built = 0
        self.acting = Acting(
            Workplace(
                slots=SLOTS,
                stepper=self.build(),
                observation_space=spaces.Box(-np.inf, np.inf, (3,)),
                action_space=spaces.Discrete(3),
                weights=WeightStore(self.weights.fd),
                evaluation_weights=WeightStore(self.evaluation_weights.fd),
                build_more_envs=self.build,
                made_progress=lambda: None,
                times=PartTimes.unshared(),
            )
        )

    def build(self, backend=b""):
        self.envs_built += 1
        envs = [CounterEnv(reuse=False, episode_length=3) for _ in SLOTS]
        return EnvStepper(envs, SLOTS, AutoresetMode.SAME_STEP, [0])

    def act(self):
        """The version that acts, and what it does."""
        actions, said = self.acting.act([np.zeros((len(SLOTS), 3), np.float32)], SLOTS)
        assert list(actions) == said["action"].tolist()
        (version,) = set(said["version"].tolist())
        (action,) = set(said["action"].tolist())
        return version, action

    def evaluate(self):
        message = Evaluate(1, SLOTS, (1, 2), 7, True, Newest(1, 1))
        return self.acting.evaluate(message)

    def close(self):
        self.weights.close()
        self.evaluation_weights.close()


@pytest.fixture
def scene():
    scene = Scene()
    scene.acting.introduce(introduction(1))
    scene.weights.put(1, 1, vector(0))
    yield scene
    scene.close()


def test_what_the_host_has_put_there_acts(scene):
    assert scene.act() == (1, 0)
    scene.weights.put(1, 4, vector(2))
    assert scene.act() == (4, 2)


def test_nothing_changes_while_there_is_nothing_newer(scene):
    scene.weights.put(1, 4, vector(2))
    assert [scene.act() for _ in range(3)] == [(4, 2)] * 3


def test_an_older_version_is_not_taken(scene):
    scene.weights.put(1, 5, vector(1))
    scene.act()
    scene.weights.put(1, 4, vector(2))
    assert scene.act() == (5, 1)


def test_weights_of_a_policy_that_was_not_introduced_yet_are_not_taken(scene):
    scene.weights.put(1, 4, vector(1))
    scene.act()
    scene.weights.put(2, 5, vector(2))
    assert scene.act() == (4, 1)


def test_another_policy_acts_once_it_is_introduced(scene):
    scene.act()
    scene.weights.put(2, 5, vector(2))
    scene.acting.introduce(introduction(2))
    assert scene.act() == (5, 2)


def test_every_action_is_that_of_a_version_that_was_published(scene):
    # Two policies in quick succession, while the worker was busy: the weights of the first are gone
    # before it begins with what it was asked to do with them.
    scene.act()
    scene.weights.put(2, 5, vector(1))
    scene.acting.introduce(introduction(2, action=1))
    scene.weights.put(3, 6, vector(2))
    with pytest.raises(RuntimeError, match="the host has no weights of this policy"):
        scene.act()


def test_a_policy_that_cannot_be_unpickled_does_not_act_as_another(scene):
    scene.act()
    scene.acting.introduce(TakePolicy(2, b"no pickle", encode_layout(())))
    for _ in range(2):
        with pytest.raises(pickle.UnpicklingError):
            scene.act()
    scene.acting.introduce(introduction(3))
    scene.weights.put(3, 6, vector(1))
    assert scene.act() == (6, 1)


def test_who_is_to_act_without_a_policy_says_so():
    scene = Scene()
    with pytest.raises(AssertionError, match="the host asked for a policy before it sent one"):
        scene.act()
    scene.close()


# Evaluations.


def test_an_evaluation_plays_whole_episodes_in_envs_of_its_own(scene):
    scene.evaluation_weights.put(1, 1, vector(0))
    results = scene.evaluate()
    assert [len(episodes) for episodes in results] == [1, 2]
    assert all(length == 3 for episodes in results for _, length in episodes)
    assert scene.envs_built == 2
    scene.evaluate()
    assert scene.envs_built == 2


def test_what_is_evaluated_does_not_act(scene):
    scene.act()
    scene.evaluation_weights.put(1, 9, vector(2))
    scene.evaluate()
    assert scene.act() == (1, 0)


def test_an_evaluation_can_come_before_anything_has_acted():
    scene = Scene()
    scene.acting.introduce(introduction(1))
    scene.evaluation_weights.put(1, 1, vector(0))
    assert len(scene.evaluate()) == 2
    scene.close()


def test_what_nobody_wants_any_more_ends_at_the_next_step(scene):
    start = [np.stack(scene.acting._place.stepper.reset(SLOTS, [0, 0], None).observations)]
    wanted = iter([True, False])
    version, arrays, current = scene.acting.collect(start, 10, is_wanted=lambda: next(wanted))
    assert (version, arrays) == (1, None)
    # After two steps; an episode has three, and its return is that of all of them.
    _, arrays, _ = scene.acting.collect(current, 1)
    assert arrays["finals/returns"].tolist() == [3.0] * len(SLOTS)
    assert arrays["finals/lengths"].tolist() == [3] * len(SLOTS)


def test_an_evaluation_that_nobody_wants_any_more_ends_at_the_next_step(scene):
    scene.evaluation_weights.put(1, 1, vector(0))
    message = Evaluate(1, SLOTS, (1, 2), 7, True, Newest(1, 1))
    assert scene.acting.evaluate(message, lambda: False) is None
    assert len(scene.evaluate()) == len(SLOTS)
