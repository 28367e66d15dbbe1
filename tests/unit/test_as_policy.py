"""Whatever the user passes as a policy becomes one, or is refused with what to do."""

import numpy as np
import pytest
import torch

from clusterenv.as_policy import AsPolicy
from clusterenv.policies.base import Acted
from clusterenv.policies.torch import TorchPolicy


class Table:
    """A policy as small as it can be."""

    def act(self, observations, state, rng):
        return Acted(np.zeros(len(observations), np.int64))

    def weights(self):
        return {}

    def load(self, weights):
        pass


def test_a_policy_is_taken_as_it_is():
    policy = Table()
    assert AsPolicy()(policy) is policy


def test_the_class_of_a_policy_is_refused():
    with pytest.raises(TypeError, match=r"Table is a class; pass an object .*: Table\(…\)"):
        AsPolicy()(Table)


def test_a_policy_that_lacks_something_is_refused_with_what_it_lacks():
    class Lacking:
        act = Table.act

    with pytest.raises(TypeError, match="Lacking is not a policy: it lacks weights and load"):
        AsPolicy()(Lacking())


@pytest.mark.parametrize("given", [None, 3, "policy", {"w": 1}])
def test_what_is_no_policy_is_refused_with_what_is_one(given):
    message = r"is not a policy: pass a clusterenv.Policy, or a torch.nn"
    with pytest.raises(TypeError, match=message):
        AsPolicy()(given)


def test_policies_by_agent_are_refused_with_what_joins_them():
    with pytest.raises(TypeError, match=r"for a policy per agent, pass .*pettingzoo\.per_agent\("):
        AsPolicy()({"scout": Table()})


class Bare(torch.nn.Module):
    """It has layers, and nothing that calls them."""


@pytest.mark.parametrize("module", [Bare(), torch.nn.ModuleDict({"a": Bare()})])
def test_a_module_without_forward_is_refused_with_what_to_do(module):
    message = r"has no forward: .*, or pass TorchPolicy\(module, distribution=lambda module, obs"
    for wrap in (AsPolicy(), TorchPolicy):
        with pytest.raises(TypeError, match=message):
            wrap(module)


def test_a_module_without_forward_acts_by_a_distribution():
    policy = TorchPolicy(Bare(), distribution=lambda module, observations: observations)
    assert AsPolicy()(policy) is policy


def test_a_forward_may_belong_to_the_object_and_a_module_may_be_called_in_its_own_way():
    class Called(torch.nn.Module):
        def __call__(self, observations):
            return observations

    given = Bare()
    given.forward = lambda observations: observations
    for module in (given, Called(), torch.nn.Sequential()):
        assert AsPolicy()(module).module is module
