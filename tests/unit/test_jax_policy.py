"""A pure function of JAX as a policy."""

import pickle
import sys
from typing import NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterenv import JaxPolicy, distributions
from clusterenv.distributions import (
    Categorical,
    DiagonalGaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)
from clusterenv.randomness import SlotRandom
from tests.equality import assert_same

OBSERVATIONS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Layer(NamedTuple):
    weight: np.ndarray
    activation: object = np.tanh


def params(seed=0):
    rng = np.random.default_rng(seed)
    actor, critic = rng.normal(size=(3, 2)), rng.normal(size=(3, 1))
    return {
        "actor": [Layer(actor.astype(np.float32), jnp.tanh)],
        "critic": critic.astype(np.float32),
    }


def apply(params, observations):
    layer = params["actor"][0]
    logits = layer.activation(observations @ layer.weight)
    return Categorical(logits, start=5), observations @ params["critic"]


def rng(count=4):
    drawn = SlotRandom(3, range(count))
    drawn.go_to(7)
    return drawn


def test_it_acts_as_its_function_says_with_numbers_of_slot_and_step():
    acted = JaxPolicy(apply, params()).act(OBSERVATIONS, None, rng())
    expected = Categorical(np.tanh(OBSERVATIONS @ params()["actor"][0].weight), start=5)
    np.testing.assert_allclose(acted.distribution.logits, expected.logits, rtol=1e-5)
    assert_same(acted.actions, expected.sample(rng()))
    assert_same(acted.outputs["log_prob"], acted.distribution.log_prob(acted.actions))
    np.testing.assert_allclose(
        acted.outputs["value"], (OBSERVATIONS @ params()["critic"])[:, 0], rtol=1e-5
    )
    likeliest = JaxPolicy(apply, params()).act(OBSERVATIONS, None, None)
    assert_same(likeliest.actions, expected.mode())


def test_any_number_of_rows_gives_what_all_rows_give():
    """Other numbers than the first are padded, so that few are compiled."""
    policy = JaxPolicy(apply, params())
    every = policy.act(OBSERVATIONS, None, rng())
    for count in (1, 2, 3):
        some = policy.act(OBSERVATIONS[:count], None, rng(count))
        np.testing.assert_allclose(
            some.distribution.logits, every.distribution.logits[:count], rtol=1e-6
        )
        assert_same(some.actions, every.actions[:count])
        assert some.outputs["value"].shape == (count,)


def test_its_weights_have_the_names_of_their_places():
    policy = JaxPolicy(apply, params())
    assert list(policy.weights()) == ["actor/0/weight", "critic"]
    other = JaxPolicy(apply, params(1))
    other.load(policy.weights())
    assert_same(other.weights(), policy.weights())
    assert_same(
        other.act(OBSERVATIONS, None, rng()).actions, policy.act(OBSERVATIONS, None, rng()).actions
    )


def test_a_learner_sets_the_params():
    policy = JaxPolicy(apply, params())
    policy.act(OBSERVATIONS, None, None)
    policy.params = jax.tree.map(
        lambda leaf: leaf if callable(leaf) else leaf + 1, policy.params, is_leaf=callable
    )
    assert_same(policy.weights()["critic"], params()["critic"] + 1)
    acted = policy.act(OBSERVATIONS, None, None)
    values = OBSERVATIONS @ (params()["critic"] + 1)
    np.testing.assert_allclose(acted.outputs["value"], values[:, 0], rtol=1e-5)


def test_what_stays_at_the_head_is_not_among_the_weights():
    policy = JaxPolicy(apply, params(), stays_at_head=("critic",))
    assert list(policy.weights()) == ["actor/0/weight"]
    policy.load({"actor/0/weight": np.zeros((3, 2), np.float32)})
    assert_same(np.asarray(policy.params["critic"]), params()["critic"])


def test_a_copy_that_needs_what_stays_at_the_head_says_so():
    policy = JaxPolicy(apply, params(), stays_at_head=("critic",))
    copy = pickle.loads(cloudpickle.dumps(policy))
    copy.load(policy.weights())
    with pytest.raises(ValueError, match=r"value is NaN\. If it needs critic, which stays at the"):
        copy.act(OBSERVATIONS, None, None)


def test_what_stays_at_the_head_costs_no_bytes():
    large = {"actor": np.ones((3, 2), np.float32), "critic": np.ones((3, 100_000), np.float32)}
    assert len(cloudpickle.dumps(JaxPolicy(apply, large))) > 1_000_000
    assert len(cloudpickle.dumps(JaxPolicy(apply, large, stays_at_head=("critic",)))) < 20_000


def test_it_travels_by_pickle():
    policy = JaxPolicy(apply, params())
    policy.act(OBSERVATIONS, None, rng())
    other = pickle.loads(cloudpickle.dumps(policy))
    assert_same(
        other.act(OBSERVATIONS, None, rng()).outputs, policy.act(OBSERVATIONS, None, rng()).outputs
    )


def test_a_recurrent_policy_gets_the_state_that_it_returned():
    def remember(params, observations, state):
        total = state["sum"] + observations @ params["w"]
        return Categorical(total), total[:, 0], {"sum": total}

    policy = JaxPolicy(remember, {"w": np.ones((3, 2), np.float32)}, state_shapes={"sum": (2,)})
    first = policy.act(OBSERVATIONS, None, None)
    second = policy.act(OBSERVATIONS, first.state, None)
    assert_same(second.state["sum"], 2 * first.state["sum"])
    fewer = policy.act(OBSERVATIONS[:3], {"sum": first.state["sum"][:3]}, None)
    assert_same(fewer.state["sum"], second.state["sum"][:3])


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: MultiCategorical(rows, (1, 2)),
        lambda rows: SquashedGaussian(rows, rows * 0, low=np.zeros(3), high=2.0),
        lambda rows: distributions.Bernoulli(rows),
        lambda rows: distributions.EpsilonGreedy(rows, rows[:, 0] * 0),
        lambda rows: Joint({"a": Categorical(rows), "b": DiagonalGaussian(rows, rows * 0)}),
        lambda rows: Joint((Categorical(rows), Categorical(rows, start=1))),
    ],
)
def test_every_distribution_may_be_returned(make):
    policy = JaxPolicy(lambda params, rows: make(rows * params["scale"]), {"scale": 1.0})
    for count in (4, 3):
        acted = policy.act(OBSERVATIONS[:count], None, rng(count))
        expected = make(OBSERVATIONS[:count])
        assert_same(acted.actions, expected.sample(rng(count)))
        assert type(acted.distribution) is type(expected)
        assert acted.distribution.arrays().keys() == expected.arrays().keys()


def test_bfloat16_travels_as_float32():
    policy = JaxPolicy(lambda params, rows: Categorical(rows), {"w": jnp.ones(2, jnp.bfloat16)})
    assert policy.weights()["w"].dtype == np.float32
    policy.load({"w": np.full(2, 2, np.float32)})
    assert policy.params["w"].dtype == jnp.bfloat16


WRONG = {
    "no function": (lambda: JaxPolicy(params(), apply), "is not a function: pass JaxPolicy"),
    "no arrays": (lambda: JaxPolicy(apply, {}), "has no arrays"),
    "a key": (lambda: JaxPolicy(apply, {"k": jax.random.key(0)}), r"params\['k'\] is a random key"),
    "no such part": (
        lambda: JaxPolicy(apply, params(), stays_at_head=("crit",)),
        r"stays_at_head='crit': .* names are \['actor', 'critic'\]",
    ),
    "logits": (
        lambda: JaxPolicy(lambda p, rows: rows, params()).act(OBSERVATIONS, None, None),
        "expected a distribution: return one of clusterenv.distributions",
    ),
    "other weights": (
        lambda: JaxPolicy(apply, params()).load({"b": np.zeros(2)}),
        r"unexpected \['b'\], missing \['actor/0/weight', 'critic'\]",
    ),
    "other params": (
        lambda: setattr(JaxPolicy(apply, params()), "params", {"actor": np.zeros(2)}),
        "params differ from those the policy was created with",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_policy_is_told_what_is_wrong(wrong):
    make, message = WRONG[wrong]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_without_jax_the_policy_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "clusterenv.policies.jax")
    with pytest.raises(ImportError, match=r"pip install 'clusterenv\[jax\]'"):
        import clusterenv.policies.jax  # noqa: F401
