"""NumPy computes small perceptrons where a policy acts: the same numbers, for less."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from clusterenv.distributions import Categorical
from clusterenv.policies.torch import TorchPolicy, _NumpyForward

OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def distribution_of(module, observations):
    return Categorical(module(observations))


def plus_one(rows):
    return rows[:, :3] + 1


def with_own_forward(module):
    module.forward = plus_one
    return module


class Doubled(nn.Linear):
    def forward(self, rows):
        return 2 * super().forward(rows)


def net(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3))


def copy_of(module):
    """A policy as a worker gets it."""
    return pickle.loads(pickle.dumps(TorchPolicy(module, distribution_of)))


def logits_of(policy, observations=OBSERVATIONS):
    return policy.act(observations, None, None).distribution.logits


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def is_by_numpy(policy):
    return isinstance(policy.module.forward, _NumpyForward)


SMALL = {
    "tanh": lambda: net(nn.Tanh()),
    "relu": lambda: net(nn.ReLU()),
    "no bias": lambda: net(nn.Tanh(), nn.Linear(8, 8, bias=False), nn.ReLU()),
    "activation at the end": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
}
OTHERS = {
    "another activation": lambda: net(nn.GELU()),
    "an activation first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
    "many weights": lambda: net(nn.Linear(8, 8192), nn.Linear(8192, 8)),
    "a layer of one's own": lambda: nn.Sequential(Doubled(4, 3)),
    "a pass of its own": lambda: with_own_forward(net(nn.Tanh())),
    "a layer with a pass of its own": lambda: nn.Sequential(with_own_forward(nn.Linear(4, 3))),
}


@pytest.mark.parametrize("kind", [*SMALL, *OTHERS])
def test_a_copy_acts_as_the_module_does(kind):
    module = (SMALL | OTHERS)[kind]()
    policy = copy_of(module)
    assert is_by_numpy(policy) == (kind in SMALL)
    assert_same(logits_of(policy), logits_of(TorchPolicy(module, distribution_of)))


def test_the_observations_stay_as_they_are():
    before = OBSERVATIONS.copy()
    logits_of(copy_of(net(nn.ReLU())))
    assert np.array_equal(OBSERVATIONS, before)


def test_loaded_weights_act():
    policy, newer = copy_of(net(nn.Tanh())), TorchPolicy(net(nn.Tanh()), distribution_of)
    with torch.no_grad():
        for parameter in newer.module.parameters():
            parameter.mul_(2)
    policy.load(newer.weights())
    assert is_by_numpy(policy)
    assert_same(logits_of(policy), logits_of(newer))


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_layers_are_called(hook):
    module = net(nn.Tanh())
    getattr(module[1], hook)(_count_calls)
    policy = copy_of(module)
    logits_of(policy)
    assert policy.module[1].calls == 1


def _count_calls(layer, *_):
    layer.calls = getattr(layer, "calls", 0) + 1


def test_a_policy_that_was_pickled_can_be_trained():
    policy = copy_of(net(nn.Tanh()))
    policy.module(torch.from_numpy(OBSERVATIONS)).sum().backward()
    assert all(parameter.grad is not None for parameter in policy.module.parameters())


@pytest.mark.parametrize("again", [False, True], ids=["moved", "moved and pickled again"])
def test_weights_that_have_moved_act(again):
    policy = copy_of(net(nn.Tanh()))
    for parameter in policy.module.parameters():
        parameter.data = 2 * parameter.data
    fresh = TorchPolicy(net(nn.Tanh()), distribution_of)
    fresh.load(policy.weights())
    if again:
        policy = pickle.loads(pickle.dumps(policy))
    assert_same(logits_of(policy), logits_of(fresh))


def test_observations_of_another_dtype_are_refused_as_torch_does():
    with pytest.raises(RuntimeError, match="dtype"):
        logits_of(copy_of(net(nn.Tanh())), OBSERVATIONS.astype(np.float64))
