"""Policies that do not fit, break or cannot travel: a clear error, and the run goes on."""

import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, Text

from clusterenv.distributions import Categorical
from clusterenv.errors import CannotPickleError, RemoteTraceback
from clusterenv.policies.base import Acted
from clusterenv.policies.numpy import NumpyPolicy
from tests.contract.policies import change, numpy_policy
from tests.contract.replay import Lives, leaves
from tests.contract.torch_modules import Net, categorical
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.catalogue import ENVS
from tests.environments.counting import Count
from tests.environments.sampling import SpaceEnv

NUM_ENVS = 4
SEED = 60


@pytest.fixture(scope="module", params=TRANSPORTS)
def live(request):
    with cluster_env(request.param, Count, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def envs(live):
    live.reset(seed=SEED)
    return live


def assert_works(envs):
    """Fail unless a sound policy still gives real rows, from a reset on."""
    lives = Lives(Count, NUM_ENVS, SEED)
    envs.reset(seed=SEED)
    lives.assert_lived(envs.rollout(numpy_policy(envs), 12))


class Stubborn:
    """Always gives what `actions(number of rows)` returns."""

    def __init__(self, actions):
        self._actions = actions

    def act(self, observations, state, rng):
        return Acted(self._actions(len(next(iter(leaves(observations))))))

    def weights(self):
        return {}

    def load(self, weights):
        pass


MISFITS = {
    "two numbers instead of one": lambda n: np.zeros((n, 2), np.int64),
    "real numbers": lambda n: np.zeros(n),
    "a row too few": lambda n: np.zeros(n - 1, np.int64),
    "a row too many": lambda n: np.zeros(n + 1, np.int64),
    "an action that there is not": lambda n: np.full(n, 2),
    "an action below the first": lambda n: np.full(n, -1),
}
WAYS = {
    "rollout": lambda envs, policy: envs.rollout(policy, 4),
    "step": lambda envs, policy: envs.step(policy),
    "stream": lambda envs, policy: (envs.publish(policy), next(envs.stream(4))),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_actions_that_do_not_fit_the_space_are_an_error(envs, misfit):
    with pytest.raises(ValueError, match="does not fit the action space"):
        envs.rollout(Stubborn(MISFITS[misfit]), 4)
    assert_works(envs)


@pytest.mark.parametrize("way", WAYS)
def test_actions_are_looked_at_however_the_policy_is_used(envs, way):
    with pytest.raises(ValueError, match="does not fit the action space"):
        WAYS[way](envs, Stubborn(MISFITS["two numbers instead of one"]))
    assert_works(envs)


def test_a_later_policy_is_looked_at_too(envs):
    envs.rollout(numpy_policy(envs), 5)
    with pytest.raises(ValueError, match="does not fit the action space"):
        envs.rollout(Stubborn(MISFITS["two numbers instead of one"]), 4)
    assert_works(envs)


def test_actions_in_another_structure_than_the_space_are_an_error():
    with (
        cluster_env("in-process", ENVS["dict actions"], 2, 1) as envs,
        pytest.raises(ValueError, match="does not fit the action space"),
    ):
        envs.rollout(Stubborn(lambda n: np.zeros(n, np.int64)), 4)


def test_a_module_that_does_not_fit_the_observations_is_torchs_own_error(envs):
    module = Net(7, 2, categorical)
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        envs.rollout(module, 4)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in features" in str(caught.value.__cause__)
    assert_works(envs)


def test_spaces_without_arrays_say_so_every_time():
    make = partial(SpaceEnv, Text(5), Discrete(2), info_kinds=())
    with cluster_env("in-process", make, 2, 1) as envs:
        for _ in range(2):
            with pytest.raises(TypeError, match="a policy on the workers needs spaces of arrays"):
                envs.rollout(Stubborn(lambda n: np.zeros(n, np.int64)), 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_not_published(envs, bad):
    policy = numpy_policy(envs)
    before = envs.publish(policy)
    policy.weights()["critic"][0, 1] = bad
    with pytest.raises(ValueError, match="'critic' hold NaN or infinity"):
        envs.rollout(policy, 4)
    policy.weights()["critic"][0, 1] = 0.5
    assert (envs.rollout(policy, 4).versions == before + 1).all()
    assert_works(envs)


def test_modules_that_diverged_are_not_published(envs):
    module = Net(3, 2, categorical)
    with torch.no_grad():
        module.actor.bias[1] = torch.nan
    with pytest.raises(ValueError, match=r"'actor.bias' hold NaN"):
        envs.publish(module)
    assert_works(envs)


@pytest.mark.parametrize(
    "other",
    [np.zeros((1, 4)), np.zeros((1, 3), np.float32), None],
    ids=["shape", "dtype", "gone"],
)
def test_weights_of_another_layout_are_not_published(envs, other):
    policy = numpy_policy(envs)
    before = envs.publish(policy)
    kept = policy.weights()["critic"]
    policy.weights().pop("critic")
    if other is not None:
        policy.weights()["critic"] = other
    with pytest.raises(ValueError, match=r"'critic'.* another name, dtype or shape"):
        envs.publish(policy)
    policy.weights()["critic"] = kept
    assert envs.publish(policy) == before


class ColdFeetError(Exception):
    """Known to the head, because this module is imported there."""


def hesitate(kind, weights, observations):
    raise kind("I would rather not")


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyError, ColdFeetError])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_policy_raises_is_raised_here_with_its_traceback(envs, way, kind):
    policy = NumpyPolicy(partial(hesitate, kind), {})
    with pytest.raises(kind, match="I would rather not") as caught:
        WAYS[way](envs, policy)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in hesitate" in str(caught.value.__cause__)
    assert "worker-" in caught.value.__notes__[0]
    assert_works(envs)


def test_what_a_policy_raises_in_evaluation_is_raised_here(envs):
    envs.rollout(numpy_policy(envs), 3)
    with pytest.raises(ColdFeetError) as caught:
        envs.evaluate(NumpyPolicy(partial(hesitate, ColdFeetError), {}), 3)
    assert "in hesitate" in str(caught.value.__cause__)
    assert_works(envs)


class Unwelcome(NumpyPolicy):
    """Can be pickled, but not unpickled."""

    def __setstate__(self, state):
        raise ColdFeetError("I do not travel")


def test_a_policy_that_cannot_be_unpickled_never_acts_in_another_ones_name(envs):
    good = numpy_policy(envs)
    bad = Unwelcome(good._distribution, {n: a + 1 for n, a in good.weights().items()})
    envs.rollout(good, 3)
    for _ in range(2):
        with pytest.raises(ColdFeetError, match="I do not travel"):
            envs.rollout(bad, 3)
    assert_works(envs)


@pytest.mark.parametrize("thing", [None, "policy", 3, gym.Env()], ids=lambda x: type(x).__name__)
def test_what_is_no_policy_is_refused(envs, thing):
    for use in (
        envs.publish,
        partial(envs.rollout, num_steps=2),
        partial(envs.evaluate, episodes=1),
    ):
        with pytest.raises(TypeError, match="is not a policy"):
            use(thing)
    assert_works(envs)


def test_a_policy_that_cannot_be_pickled_names_the_culprit(envs):
    lock = threading.Lock()

    def guarded(weights, observations):
        with lock:
            return Categorical(np.zeros((len(observations), 2)))

    with pytest.raises(CannotPickleError, match=r"'lock' of .*guarded"):
        envs.rollout(NumpyPolicy(guarded, {}), 2)
    module = Net(3, 2, categorical)
    module.guard = lock
    with pytest.raises(CannotPickleError, match=r"\.module\.guard"):
        envs.rollout(module, 2)
    assert_works(envs)


def test_a_changed_policy_goes_on_after_a_failed_publish(envs):
    policy = numpy_policy(envs)
    before = envs.publish(policy)
    with pytest.raises(CannotPickleError):
        envs.publish(NumpyPolicy(threading.Lock(), {}))
    change(policy, seed=4)
    assert envs.publish(policy) == before + 1
    assert_works(envs)
