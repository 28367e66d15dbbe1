"""A NumPy policy takes nested weights as its functions want them, and publishes them by name."""

from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from clusterenv import NumpyPolicy
from clusterenv.distributions import Categorical
from tests.equality import assert_same

Layer = namedtuple("Layer", "weight bias")


def logits_of(weights, observations):
    """Two layers, whatever the form that they are kept in."""
    rows = observations
    for layer in weights["layers"]:
        rows = rows @ layer.weight + (0 if layer.bias is None else layer.bias)
    return Categorical(logits=rows * weights["scale"][0])


def nested(seed=0):
    rng = np.random.default_rng(seed)
    first = Layer(rng.normal(size=(3, 4)), rng.normal(size=4))
    last = Layer(rng.normal(size=(4, 2)), None)
    return {"layers": [first, last], "scale": (rng.normal(size=1), {})}


def policy_of(seed=0):
    return NumpyPolicy(logits_of, nested(seed))


def acted(policy):
    return policy.act(np.ones((5, 3)), None, None).outputs


def test_weights_have_the_names_of_their_places():
    names = ["layers/0/weight", "layers/0/bias", "layers/1/weight", "scale/0"]
    assert list(policy_of().weights()) == names


def test_named_weights_of_another_policy_of_the_same_form_make_it_act_alike():
    copy = policy_of(1)
    assert not np.array_equal(acted(copy)["log_prob"], acted(policy_of())["log_prob"])
    copy.load(policy_of().weights())
    assert_same(acted(copy), acted(policy_of()))


def test_weights_may_be_loaded_in_the_form_that_the_policy_was_made_with():
    copy = policy_of(1)
    copy.load(nested())
    assert_same(acted(copy), acted(policy_of()))


def test_the_functions_get_the_form_that_the_policy_was_made_with():
    seen = []

    def look(weights, observations):
        seen.append(weights)
        return Categorical(logits=np.zeros((len(observations), 2)))

    policy = NumpyPolicy(look, nested())
    policy.load(policy.weights())
    acted(policy)
    assert_same(seen[0], nested())
    assert isinstance(seen[0]["layers"][0], Layer)


def test_arrays_that_the_user_changes_in_place_are_published():
    weights = {"table": [np.zeros(2)]}
    policy = NumpyPolicy(partial(logits_of), weights)
    weights["table"][0][:] = 7
    assert_same(policy.weights(), {"table/0": np.array([7.0, 7.0])})


def test_a_flat_dict_keeps_its_names():
    weights = {"a/b": np.zeros(2), "c": np.ones(1, np.int8)}
    assert_same(NumpyPolicy(logits_of, weights).weights(), weights)


def test_two_weights_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two weights are called 'a/b'"):
        NumpyPolicy(logits_of, {"a/b": np.zeros(2), "a": {"b": np.zeros(2)}})


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(TypeError, match=r"arrays of numbers.*'layers/1' is a str"):
        NumpyPolicy(logits_of, {"layers": [np.zeros(2), "relu"]})


def test_weights_of_another_form_are_refused_with_what_differs():
    with pytest.raises(ValueError, match=r"another policy: unexpected \['bias'\], missing \['"):
        policy_of().load({"bias": np.zeros(2)})
