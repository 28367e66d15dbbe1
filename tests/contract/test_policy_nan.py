"""NaN from a policy whose weights are finite: an error that names slot and output, every time."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import distributions as td

from clusterenv.distributions import Categorical, DiagonalGaussian
from clusterenv.policies.base import Acted
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.policies.torch import TorchPolicy
from tests.contract.policies import numpy_policy
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.counting import Count

NUM_ENVS = 4
SEED = 80
SPACES = {
    "discrete": Discrete(2),
    "continuous": Box(-1.0, 1.0, (2,), np.float64),
}


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture(scope="module", params=SPACES)
def live(request, transport):
    make = partial(Count, 5, SPACES[request.param])
    with cluster_env(transport, make, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def envs(live):
    live.reset(seed=SEED)
    return live


def marks(envs):
    """What each slot observes of itself until its first episode ends."""
    return envs.reset(seed=SEED)[0][:, 0].tolist()


def spoilt(mark, age, observations):
    """NaN where the episode with this mark has this age, else 0."""
    is_bad = (observations[:, 0] == mark) & (observations[:, 1] == age)
    return np.where(is_bad, np.nan, 0.0)


def everywhere(observations):
    return np.full(len(observations), np.nan)


def distribution_of(space, where, weights, observations):
    scores = where(observations)[:, None] + np.zeros((len(observations), 2))
    if isinstance(space, Discrete):
        return Categorical(scores)
    return DiagonalGaussian(scores, np.zeros_like(scores))


def value_of(where, weights, observations):
    return where(observations)


def policy_with_nan(envs, slot, age, in_value=False):
    where, never = partial(spoilt, marks(envs)[slot], age), partial(spoilt, np.inf, 0)
    distribution = partial(distribution_of, envs.single_action_space, never if in_value else where)
    return NumpyPolicy(distribution, {"w": np.ones(1)}, partial(value_of, where))


WAYS = {
    "rollout": lambda envs, policy: envs.rollout(policy, 4),
    "step": lambda envs, policy: [envs.step(policy) for _ in range(4)],
    "stream": lambda envs, policy: (envs.publish(policy), list(islice(envs.stream(4), 200))),
}


def assert_works(envs):
    envs.reset(seed=SEED)
    assert np.isfinite(envs.rollout(numpy_policy(envs), 12).outputs["log_prob"]).all()


@pytest.mark.parametrize("way", WAYS)
def test_actions_of_nan_are_an_error_that_names_slot_and_output(envs, way):
    name = "log_prob" if isinstance(envs.single_action_space, Discrete) else "action"
    with pytest.raises(ValueError, match=rf"the policy's {name} of slot 2 is NaN") as caught:
        WAYS[way](envs, policy_with_nan(envs, slot=2, age=2))
    assert "slot 2" in caught.value.__notes__[0]
    assert_works(envs)


@pytest.mark.parametrize("way", WAYS)
def test_values_of_nan_are_an_error_that_names_slot_and_output(envs, way):
    with pytest.raises(ValueError, match=r"the policy's value of slot 1 is NaN"):
        WAYS[way](envs, policy_with_nan(envs, slot=1, age=2, in_value=True))
    assert_works(envs)


@pytest.mark.parametrize("age", [4, 5])
def test_the_values_of_last_observations_are_looked_at_too(envs, age):
    """Of the one after the last step, and of the one at which the episode ends."""
    with pytest.raises(ValueError, match=r"the policy's value of slot 3 is NaN"):
        envs.rollout(policy_with_nan(envs, slot=3, age=age, in_value=True), age)
    assert_works(envs)


def test_an_evaluation_does_not_play_with_nan(envs):
    distribution = partial(distribution_of, envs.single_action_space, everywhere)
    # Of all slots of a worker: two, or one where there are as many hosts as slots.
    others = r" \(and of 1 more" if len(envs.workers) == 2 else " is NaN"
    with pytest.raises(ValueError, match=rf"(log_prob|action) of slot \d{others}"):
        envs.evaluate(NumpyPolicy(distribution, {}), 4)
    assert_works(envs)


class Bare:
    """Gives NaN as the action in the episode with this mark, and nothing besides."""

    def __init__(self, mark):
        self.mark = mark

    def act(self, observations, state, rng):
        actions = np.zeros((len(observations), 2))
        actions[observations[:, 0] == self.mark, 1] = np.nan
        return Acted(actions)

    def weights(self):
        return {}

    def load(self, weights):
        pass


@pytest.mark.parametrize("way", WAYS)
def test_real_actions_are_looked_at_without_a_log_prob(transport, way):
    with cluster_env(transport, partial(Count, 5, SPACES["continuous"]), 2, 1) as envs:
        policy = Bare(marks(envs)[1])
        with pytest.raises(ValueError, match=r"the policy's action of slot 1 is NaN") as caught:
            WAYS[way](envs, policy)
        assert "action array([ 0., nan])" in caught.value.__notes__[0]


class Saturated(torch.nn.Module):
    """So sure of itself that tanh rounds its actions to 1, where torch's own density is NaN."""

    def forward(self, observations):
        base = td.Normal(torch.full((len(observations), 2), 30.0), 0.1)
        return td.Independent(td.TransformedDistribution(base, td.TanhTransform()), 1)


def test_squashed_actions_at_their_bound_are_no_error():
    with cluster_env("in-process", partial(Count, 5, SPACES["continuous"]), 2, 1) as envs:
        rollout = envs.rollout(TorchPolicy(Saturated()), 3)
    assert (rollout.actions == 1.0).all()
    assert (rollout.outputs["log_prob"] == -np.inf).all()
