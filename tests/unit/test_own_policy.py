"""The head lets each policy act once, to know what hosts will send; nobody notices that."""

import pickle
import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from clusterenv.distributions import Categorical
from clusterenv.head.own_policy import OwnPolicies
from clusterenv.policies.base import Acted

SPACE = Dict(image=Box(0, 255, (2, 2), np.uint8), speed=Box(-1.0, 1.0, (), np.float32))
ACTIONS = Dict(arm=Box(-1.0, 1.0, (3,), np.float32), mode=Discrete(4))


def observations(count=5):
    return [np.ones((count, 2, 2), np.uint8), np.ones(count, np.float32)]


class Acts:
    """Makes one of everything, of any observations but those that it `refuses`."""

    def __init__(self, refuses=(), raises=ValueError):
        self.refuses, self.raises = refuses, raises

    def act(self, observations, state, rng):
        count = len(observations["speed"])
        if float(observations["speed"][0]) in self.refuses:
            raise self.raises("these do not suit")
        rng.uniform()
        random.random(), np.random.random(), torch.rand(1)
        warnings.warn("hm", stacklevel=1)
        return Acted(
            {"arm": np.zeros((count, 3), np.float32), "mode": np.zeros(count, np.int64)},
            Categorical(np.zeros((count, 4))),
            {"log_prob": np.zeros(count), "value": np.zeros((count, 2), np.float32)},
            {"h": np.zeros((count, 7), np.float32)},
        )


def own(policy, space=SPACE, ids=(1,)):
    taken = SimpleNamespace(policy=pickle.dumps(policy))
    publisher = SimpleNamespace(introduced=dict.fromkeys(ids, taken).get)
    return OwnPolicies(publisher, space, ACTIONS)


FLOAT, DOUBLE, INT = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
ALL = {
    "actions/0": ((3,), FLOAT),
    "actions/1": ((), INT),
    "outputs/log_prob": ((), DOUBLE),
    "outputs/value": ((2,), FLOAT),
    "distribution/logits": ((4,), DOUBLE),
    "state/h": ((7,), FLOAT),
    "last_values": ((2,), FLOAT),
    "finals/values": ((2,), FLOAT),
}


@pytest.mark.parametrize(
    "refuses", [(), (1.0,), (1.0, 0.0)], ids=["these", "not these", "neither these nor zeros"]
)
def test_what_a_policy_makes_is_found_out_on_some_observations(refuses):
    policies = own(Acts(refuses))
    assert not policies.knows(1)
    assert policies.kinds_of(1, observations) == ALL
    assert policies.knows(1)


def test_a_policy_acts_once_only():
    policies = own(Acts())
    assert policies.kinds_of(1, observations) == ALL
    assert policies.kinds_of(1, lambda: pytest.fail("it has acted already")) == ALL


class Never(Acts):
    def act(self, observations, state, rng):
        raise RuntimeError("not on this machine")


def test_of_a_policy_that_cannot_act_nothing_is_known_and_it_is_not_tried_for_ever():
    policies, tried = own(Never()), []

    def observe():
        tried.append(1)
        return observations()

    assert [policies.kinds_of(1, observe) for _ in range(20)] == [None] * 20
    assert len(tried) == 8
    assert not policies.knows(1)


def test_of_a_policy_that_nobody_has_any_more_nothing_is_known():
    assert own(Acts()).kinds_of(7, observations) is None


def test_spaces_that_are_no_arrays_are_no_policys():
    space = Dict(text=Text(3))
    assert own(Acts(), space).kinds_of(1, list) is None


def test_nobody_notices_that_a_policy_has_acted():
    def draws():
        return random.random(), np.random.random(), float(torch.rand(1))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own(Acts()).kinds_of(1, observations) == ALL
    assert draws() == expected


def test_only_so_many_are_remembered():
    policies = own(Acts(), ids=range(40))
    for number in range(40):
        assert policies.kinds_of(number, observations) == ALL
    assert sum(policies.knows(number) for number in range(40)) == 16
