"""`TianshouVectorEnv` gives what Tianshou's own DummyVectorEnv gives, and Tianshou trains on it."""

import importlib
import os
import signal
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import SyncVectorEnv

from clusterenv import VectorBackend
from tests.environments.faults import GateEnv
from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    pytest.importorskip("tianshou", reason="make test-adapters installs it")
    import torch
    from tianshou.algorithm import Reinforce
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import BaseVectorEnv, DummyVectorEnv, VectorEnvNormObs
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor

    from clusterenv.adapters.tianshou import TianshouVectorEnv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NUM_ENVS = 4
SENSES = Dict(camera=Box(0, 255, (2, 2), np.uint8), heading=Box(-1.0, 1.0, (3,)), gear=Discrete(4))
MAKERS = {
    "terminated": partial(gym.make, "CartPole-v1"),
    "truncated": partial(gym.make, "Pendulum-v1", max_episode_steps=15),
    "dict": partial(SpaceEnv, SENSES, action_space=Discrete(3)),
}
cart_pole = MAKERS["terminated"]


@pytest.fixture
def pair(request):
    """Ours and Tianshou's own, of the same envs."""
    make = MAKERS[getattr(request, "param", "terminated")]
    ours = TianshouVectorEnv(make, NUM_ENVS, 2, launcher="in-process")
    yield ours, DummyVectorEnv([make] * NUM_ENVS)
    ours.close()


def assert_same_rows(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        assert_same(actual, expected)


def as_float64(step):
    """Tianshou keeps the type of a reward; here it is always that of Gymnasium's vector envs."""
    return step[0], step[1].astype(np.float64), *step[2:]


@pytest.mark.parametrize("pair", MAKERS, indirect=True)
def test_it_gives_the_same_numbers_as_tianshou_does(pair):
    ours, theirs = pair
    rng, ends = np.random.default_rng(0), 0
    assert isinstance(ours, BaseVectorEnv)
    assert len(ours) == len(theirs) == NUM_ENVS
    assert ours.action_space == theirs.action_space
    assert ours.observation_space == theirs.observation_space
    assert ours.seed(7) == theirs.seed(7)
    assert_same_rows(ours.reset(), theirs.reset())
    for number in range(200):
        # All of them for a while, then some, in any order.
        ids = rng.permutation(NUM_ENVS).tolist()[: rng.integers(1, NUM_ENVS + 1)]
        ids = ids if number > 50 else None
        count = NUM_ENVS if ids is None else len(ids)
        actions = np.stack([theirs.action_space[0].sample() for _ in range(count)])
        actual, expected = ours.step(actions, ids), theirs.step(actions, ids)
        assert_same_rows(actual, as_float64(expected))
        slots = np.array(range(NUM_ENVS) if ids is None else ids)
        over = slots[expected[2] | expected[3]]
        if len(over):
            ends += len(over)
            assert_same_rows(ours.reset(over), theirs.reset(over))
    assert ends > 10
    assert_same_rows(ours.reset(), theirs.reset())


def test_resets_with_seeds_and_options_are_those_of_tianshou(pair):
    ours, theirs = pair
    assert_same_rows(ours.reset(seed=5), theirs.reset(seed=5))
    narrow = {"low": -0.01, "high": 0.01}
    assert_same_rows(ours.reset([2, 0], options=narrow), theirs.reset([2, 0], options=narrow))
    assert_same_rows(ours.reset(1, seed=9), theirs.reset(1, seed=9))
    assert_same_rows(ours.reset(seed=None), theirs.reset(seed=None))


class CountingResets(gym.Env):
    """Observes how often it was reset; an episode is two steps."""

    observation_space, action_space = Box(0, 99, (1,), np.int64), Discrete(2)
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets, self.steps = self.resets + 1, 0
        return np.array([self.resets]), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.resets]), 0.0, self.steps == 2, False, {}


def test_a_reset_after_the_end_is_no_second_reset():
    ours = TianshouVectorEnv(CountingResets, 2, launcher="in-process")
    assert ours.reset()[0].tolist() == [[1], [1]]
    for _ in range(2):
        observations, _, terminated, _, _ = ours.step(np.zeros(2, int))
    assert terminated.all()
    assert observations.tolist() == [[1], [1]]
    assert ours.reset([1])[0].tolist() == [[2]]
    assert ours.reset()[0].tolist() == [[2], [3]]
    ours.close()


def test_an_env_that_was_never_reset_can_be_left_out(pair):
    ours, theirs = pair
    for venv in pair:
        venv.reset([1], seed=3)
    assert_same_rows(ours.step(np.array([1]), 1), theirs.step(np.array([1]), 1))


# Collectors and learning.


def policy_for(venv):
    torch.manual_seed(11)
    net = Net(state_shape=(4,), hidden_sizes=[16])
    actor = DiscreteActor(preprocess_net=net, action_shape=2)
    return DiscreteActorPolicy(actor=actor, action_space=venv.action_space[0])


def collected(venv, random=False, **amounts):
    """Everything in the buffer, and the statistics, after a few calls."""
    venv.seed(5)
    policy = policy_for(venv)
    torch.manual_seed(12)
    collector = Collector(policy, venv, VectorReplayBuffer(4000, NUM_ENVS))
    collector.reset()
    statistics = [collector.collect(random=random, **amounts) for _ in range(3)]
    batch, _ = collector.buffer.sample(0)
    arrays = {key: batch[key] for key in ("obs", "act", "rew", "terminated", "truncated")}
    arrays["obs_next"] = batch.obs_next
    returns = [one.returns.tolist() for one in statistics]
    return arrays, returns, [one.n_collected_steps for one in statistics]


@pytest.mark.parametrize("random", [False, True], ids=["policy", "random"])
@pytest.mark.parametrize("amount", [{"n_step": 120}, {"n_episode": 6}, {"n_episode": NUM_ENVS}])
def test_a_collector_collects_the_very_same(pair, amount, random):
    ours, theirs = (collected(venv, random, **amount) for venv in pair)
    assert_same(ours, theirs)
    assert sum(ours[2]) > 100
    assert sum(map(len, ours[1])) >= 6


@pytest.mark.filterwarnings("ignore:n_episode=2 should be larger than")
def test_fewer_episodes_than_envs_leave_some_envs_out(pair):
    ours, theirs = (collected(venv, n_episode=2) for venv in pair)
    assert_same(ours, theirs)


def test_tianshou_learns_the_very_same_on_it(pair):
    after = []
    for venv in pair:
        venv.seed(1)
        policy = policy_for(venv)
        algorithm = Reinforce(policy=policy, optim=AdamOptimizerFactory(lr=0.01))
        before = [weights.clone() for weights in policy.parameters()]
        collector = Collector(algorithm, VectorEnvNormObs(venv), VectorReplayBuffer(2000, NUM_ENVS))
        torch.manual_seed(2)
        np.random.seed(2)
        parameters = OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=2,
            epoch_num_steps=200,
            collection_step_num_env_steps=100,
            update_step_num_repetitions=2,
            batch_size=32,
            show_progress=False,
            verbose=False,
        )
        algorithm.run_training(parameters)
        after.append([weights.detach().numpy() for weights in policy.parameters()])
    assert_same(*after)
    assert not np.array_equal(after[0][0], before[0].detach().numpy())


# Attributes and pictures.


def test_attributes_are_read_and_set_in_the_envs_that_are_meant(pair):
    for venv in pair:
        venv.set_env_attr("gravity", 1.5, [1, 3])
        venv.set_env_attr("gravity", 2.5, 0)
    ours, theirs = pair
    assert ours.get_env_attr("gravity") == theirs.get_env_attr("gravity") == [2.5, 1.5, 9.8, 1.5]
    assert ours.get_env_attr("gravity", [3, 0]) == [1.5, 2.5]
    assert ours.get_env_attr("gravity", 2) == [9.8]
    assert [one["render_fps"] for one in ours.metadata] == [50] * NUM_ENVS
    with pytest.raises(AttributeError, match="levity"):
        ours.get_env_attr("levity")


def test_pictures_are_those_of_the_envs():
    make = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    ours, theirs = TianshouVectorEnv(make, 2, launcher="in-process"), DummyVectorEnv([make] * 2)
    for venv in (ours, theirs):
        venv.reset(seed=1)
    assert_same(ours.render(), theirs.render())
    with pytest.raises(TypeError, match=r"render takes no arguments here, got \['mode'\]"):
        ours.render(mode="human")
    ours.close()


# Workers and what can go wrong.


def test_workers_need_no_tianshou():
    venv = TianshouVectorEnv(cart_pole, 2, 2)
    venv.reset(seed=0)
    observations, *_ = venv.step(np.array([1]), [1])
    assert observations.shape == (1, 4)
    loaded = venv.envs.apply(lambda env: "tianshou" in sys.modules or "torch" in sys.modules)
    assert loaded == [False, False]
    venv.close()


def test_a_lost_worker_is_an_episode_that_was_cut_short():
    venv = TianshouVectorEnv(partial(GateEnv, "", "nothing"), 2, 2)
    before, _ = venv.reset()
    os.kill(venv.envs.apply(lambda env: os.getpid())[1], signal.SIGKILL)
    observations, _, terminated, truncated, infos = venv.step(np.zeros(2, np.int64))
    assert terminated.tolist() == [False, False]
    assert truncated.tolist() == [False, True]
    assert infos[1] == {"env_lost": True, "env_id": 1}
    assert_same(observations[1], before[1])
    assert not np.array_equal(venv.reset([1])[0][0], before[1])
    venv.close()


def test_a_backend_object_steps_all_of_its_envs_or_none():
    def make_vector(count):
        return SyncVectorEnv([cart_pole] * count, autoreset_mode="SameStep")

    ours = TianshouVectorEnv(VectorBackend(make_vector), NUM_ENVS, 2, launcher="in-process")
    theirs = DummyVectorEnv([cart_pole] * NUM_ENVS)
    assert_same(collected(ours, n_step=120), collected(theirs, n_step=120))
    with pytest.raises(TypeError, match=r"steps all of its 4 envs together, but only \[0, 2\]"):
        ours.step(np.zeros(2, int), [0, 2])
    ours.close()


WRONG = {
    "wait_num": ({"wait_num": 1}, "wait_num is for asynchronous vector envs"),
    "timeout": ({"timeout": 1.0}, "timeout is for asynchronous vector envs"),
}


@pytest.mark.parametrize(("kwargs", "message"), WRONG.values(), ids=WRONG)
def test_asynchronous_stepping_is_refused(kwargs, message):
    with pytest.raises(TypeError, match=message):
        TianshouVectorEnv("CartPole-v1", 2, **kwargs)


TUPLE = Tuple([Discrete(2), Discrete(3)])


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (TUPLE, Discrete(3), r"observations must be one of Box, .*, Dict for Tianshou, got Tuple"),
        (Discrete(3), TUPLE, r"actions must be one of Box, .*, MultiBinary for Tianshou, got Tu"),
    ],
    ids=["observations", "actions"],
)
def test_spaces_that_tianshou_cannot_take_are_refused(observations, actions, message):
    make = partial(SpaceEnv, observations, action_space=actions)
    with pytest.raises(TypeError, match=message):
        TianshouVectorEnv(make, 2, launcher="in-process")


def test_wrong_actions_and_ids_are_refused(pair):
    ours, _ = pair
    ours.reset()
    with pytest.raises(ValueError, match="got 2 actions for 4 envs"):
        ours.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="got no actions for 4 envs"):
        ours.step(None)
    with pytest.raises(ValueError, match="each once"):
        ours.step(np.zeros(2, int), [1, 1])
    with pytest.raises(IndexError):
        ours.reset([NUM_ENVS])


def test_after_close_nothing_works():
    venv = TianshouVectorEnv("CartPole-v1", 2, launcher="in-process")
    venv.close()
    with pytest.raises(AssertionError, match="cannot be called after close"):
        venv.reset()


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tianshou.env", None)
    monkeypatch.delitem(sys.modules, "clusterenv.adapters.tianshou")
    with pytest.raises(ImportError, match="pip install tianshou"):
        importlib.import_module("clusterenv.adapters.tianshou")
