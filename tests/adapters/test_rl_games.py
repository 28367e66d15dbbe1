"""`RlGamesVecEnv` gives what SyncVectorEnv gives, and rl_games trains and plays on it."""

import copy
import importlib
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from tests.environments.sampling import SpaceEnv
from tests.equality import assert_same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    pytest.importorskip("rl_games", reason="make test-adapters installs it")
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv
    from rl_games.torch_runner import Runner

    from clusterenv.adapters.rl_games import RlGamesVecEnv, register_env

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NUM_ENVS = 4
MAKERS = {
    "terminated": partial(gym.make, "CartPole-v1"),
    "truncated": partial(gym.make, "Pendulum-v1", max_episode_steps=15),
}


def ours(env, num_actors=NUM_ENVS, **kwargs):
    return RlGamesVecEnv(env, num_actors, launcher="in-process", **kwargs)


# The same numbers.


@pytest.mark.parametrize("kind", MAKERS)
def test_it_gives_the_same_numbers_as_gymnasium_does(kind):
    def make():
        return RecordEpisodeStatistics(MAKERS[kind]())

    actual, ends = ours(make, seed=3), 0
    expected = SyncVectorEnv([make] * NUM_ENVS, autoreset_mode="SameStep")
    expected.action_space.seed(4)
    assert isinstance(actual, IVecEnv)
    assert_same(actual.reset(), expected.reset(seed=3)[0])
    for _ in range(300):
        actions = expected.action_space.sample()
        observations, rewards, dones, infos = actual.step(actions)
        theirs, their_rewards, terminated, truncated, their_infos = expected.step(actions)
        assert_same(observations, theirs)
        assert_same(rewards, their_rewards)
        assert_same(dones, terminated | truncated)
        assert_same(infos["time_outs"], truncated)
        if dones.any():
            ends += dones.sum()
            assert_same(infos["episode"]["r"], their_infos["final_info"]["episode"]["r"])
    assert ends > 20
    assert_same(actual.reset(), expected.reset()[0])
    actual.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        actual.reset()


class Ends(gym.Env):
    """Says how it ends."""

    observation_space, action_space = Box(0.0, 9.0, (2,), np.float64), Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {"score": -1.0, "start": 1}

    def step(self, action):
        terminated, truncated = action in (1, 2), action == 2
        return np.ones(2), 1.0, terminated, truncated, {"score": float(action)}


def test_an_episode_that_terminated_at_its_limit_is_no_time_out():
    venv = ours(Ends)
    venv.reset()
    _, _, dones, infos = venv.step(np.array([0, 1, 2, 0]))
    assert dones.tolist() == [False, True, True, False]
    assert infos["time_outs"].tolist() == [False] * 4
    venv.close()


def test_infos_are_those_of_the_last_step_where_an_episode_has_ended():
    venv = ours(Ends)
    venv.reset()
    *_, infos = venv.step(np.array([0, 1, 2, 0]))
    assert infos["score"].tolist() == [0.0, 1.0, 2.0, 0.0]
    assert infos["_score"].all()
    assert infos["start"].tolist() == [0, 1, 1, 0]
    assert not {"final_obs", "final_info"} & infos.keys()
    venv.close()


def test_float64_becomes_float32_and_other_dtypes_stay():
    senses = Dict(camera=Box(0, 255, (2, 2), np.uint8), heading=Box(-1.0, 1.0, (3,), np.float64))
    venv = ours(partial(SpaceEnv, senses, action_space=Discrete(3)))
    for observations in (venv.reset(), venv.step(np.zeros(NUM_ENVS, int))[0]):
        assert observations["heading"].dtype == np.float32
        assert observations["camera"].dtype == np.uint8
    venv.close()


def test_a_seed_is_that_of_the_next_reset_only():
    venv = ours("CartPole-v1", seed=5)
    first, second = venv.reset(), venv.reset()
    assert not np.array_equal(first, second)
    venv.seed(5)
    assert np.array_equal(first, venv.reset())
    venv.close()


ACTIONS = {
    "multi-discrete": (MultiDiscrete([3, 4]), Tuple([Discrete(3), Discrete(4)])),
    "tuple": (Tuple([Discrete(3), Discrete(4)]), Tuple([Discrete(3), Discrete(4)])),
}


class Echo(gym.Env):
    """Observes the action."""

    observation_space = Box(0.0, 9.0, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.array(action, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("num_actors", [1, 4])
@pytest.mark.parametrize(("space", "told"), ACTIONS.values(), ids=ACTIONS)
def test_several_discrete_actions_come_as_columns(space, told, num_actors):
    venv = ours(partial(Echo, space), num_actors)
    assert venv.get_env_info()["action_space"] == told
    venv.reset()
    actions = np.array([[0, 3], [1, 2], [2, 1], [0, 0]])[:num_actors]
    assert_same(venv.step(actions.squeeze())[0], actions.astype(np.float32))
    venv.close()


# rl_games itself.


def config_of(folder, algorithm="a2c_discrete", **config):
    """A small configuration for `Runner`."""
    is_discrete = algorithm == "a2c_discrete"
    sigma = {"mu_activation": "None", "sigma_activation": "None", "fixed_sigma": True}
    continuous = {
        **sigma,
        "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": 0},
    }
    network = {
        "name": "actor_critic",
        "separate": False,
        "space": {"discrete": None} if is_discrete else {"continuous": continuous},
        "mlp": {
            "units": [16],
            "activation": "relu",
            "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
    }
    settings = {
        "name": "test",
        "train_dir": str(folder),
        "device": "cpu",
        "device_name": "cpu",
        "torch_compile": False,
        "reward_shaper": {"scale_value": 0.1},
        "normalize_advantage": True,
        "normalize_input": False,
        "gamma": 0.99,
        "tau": 0.9,
        "learning_rate": 1e-3,
        "lr_schedule": None,
        "grad_norm": 1.0,
        "entropy_coef": 0.01,
        "truncate_grads": True,
        "e_clip": 0.2,
        "clip_value": True,
        "num_actors": NUM_ENVS,
        "horizon_length": 32,
        "minibatch_size": 64,
        "mini_epochs": 2,
        "critic_coef": 1,
        "bounds_loss_coef": 0.0,
        "max_epochs": 3,
        "save_best_after": 10**9,
        "env_config": {"seed": 9},
    }
    model = "discrete_a2c" if is_discrete else "continuous_a2c_logstd"
    return {
        "params": {
            "seed": 8,
            "torch_threads": 1,
            "algo": {"name": algorithm},
            "model": {"name": model},
            "network": network,
            "config": {**settings, **config},
        }
    }


class SyncVecEnv(IVecEnv):
    """The least that rl_games needs, over Gymnasium's own SyncVectorEnv."""

    def __init__(self, make, num_actors, seed):
        self.envs, self.seeds = (
            SyncVectorEnv([make] * num_actors, autoreset_mode="SameStep"),
            [seed],
        )

    def reset(self):
        return self.envs.reset(seed=self.seeds.pop() if self.seeds else None)[0]

    def step(self, actions):
        observations, rewards, terminated, truncated, _ = self.envs.step(actions)
        return observations, rewards, terminated | truncated, {"time_outs": truncated}

    def get_env_info(self):
        action_space = self.envs.single_action_space
        return {
            "observation_space": self.envs.single_observation_space,
            "action_space": action_space,
        }

    def close(self):
        self.envs.close()


def trained(config, monkeypatch):
    """The weights after training, and the frames that it took."""
    agents = []
    runner = Runner()
    runner.load(copy.deepcopy(config))
    create = runner.algo_factory.create
    monkeypatch.setattr(
        runner.algo_factory, "create", lambda *a, **k: agents.append(create(*a, **k)) or agents[0]
    )
    runner.run({"train": True})
    (agent,) = agents
    weights = {name: w.numpy().copy() for name, w in agent.model.state_dict().items()}
    agent.vec_env.close()
    agent.writer.close()
    return weights, agent.frame, agent.game_rewards.get_mean()


@pytest.mark.parametrize("algorithm", ["a2c_discrete", "a2c_continuous"])
def test_rl_games_learns_the_very_same_on_it(algorithm, tmp_path, monkeypatch):
    make = MAKERS["terminated" if algorithm == "a2c_discrete" else "truncated"]
    register_env("ours", make, launcher="in-process", num_workers=2)

    def make_theirs(name, count, **config):
        return SyncVecEnv(make, count, **config)

    monkeypatch.setitem(vecenv.vecenv_config, "SYNC", make_theirs)
    monkeypatch.setitem(env_configurations.configurations, "theirs", {"vecenv_type": "SYNC"})
    actual = trained(config_of(tmp_path / "a", algorithm, env_name="ours"), monkeypatch)
    expected = trained(config_of(tmp_path / "b", algorithm, env_name="theirs"), monkeypatch)
    assert actual[1] == expected[1] == 3 * 32 * NUM_ENVS
    assert_same(actual[0], expected[0])
    assert actual[2] == expected[2] != 0


def test_rl_games_trains_over_processes_and_plays(tmp_path, monkeypatch, capsys):
    register_env("processes", "CartPole-v1", num_workers=2, max_episode_steps=20)
    player = {"games_num": 6, "use_vecenv": True, "print_stats": False}
    config = config_of(tmp_path, env_name="processes", player=player)
    weights, frames, _ = trained(config, monkeypatch)
    assert frames == 3 * 32 * NUM_ENVS
    assert all(np.isfinite(array).all() for array in weights.values())
    (checkpoint,) = tmp_path.glob("*/nn/last_*.pth")
    runner = Runner()
    runner.load(copy.deepcopy(config))
    agent = runner.create_player()
    agent.restore(str(checkpoint))
    agent.run()
    agent.env.close()
    assert "av reward:" in capsys.readouterr().out


def test_a_player_without_a_vecenv_has_one_env(tmp_path):
    register_env("single", "CartPole-v1", launcher="in-process")
    config = config_of(tmp_path, env_name="single", player={"games_num": 2})
    runner = Runner()
    runner.load(config)
    player = runner.create_player()
    player.run()
    assert player.env.envs.num_envs == 1
    player.env.close()


def test_the_configuration_wins_over_what_was_registered():
    register_env("cart", "CartPole-v1", launcher="in-process", num_workers=2)
    venv = vecenv.create_vec_env("cart", 3, num_workers=1)
    assert (venv.envs.num_envs, venv.envs.num_workers) == (3, 1)
    info = venv.get_env_info()
    assert info["observation_space"] == venv.envs.single_observation_space
    assert info["agents"] == info["value_size"] == 1
    venv.close()


# What can go wrong.


WRONG = {
    "tuple": (Tuple([Discrete(2), Discrete(3)]), Discrete(2), "observations that are a Box or"),
    "discrete": (Discrete(2), Discrete(2), "wrap the env, as in gymnasium.wrappers.Flatten"),
    "actions": (Box(0.0, 1.0, (2,)), Dict(a=Discrete(2)), "takes actions that are a Box"),
    "start": (Box(0.0, 1.0, (2,)), Discrete(2, start=1), "counted from 0"),
}


@pytest.mark.parametrize(("observations", "actions", "message"), WRONG.values(), ids=WRONG)
def test_spaces_that_rl_games_cannot_take_are_refused(observations, actions, message):
    with pytest.raises(TypeError, match=message):
        ours(partial(SpaceEnv, observations, actions))


def test_another_autoreset_mode_is_refused():
    with pytest.raises(ValueError, match="reset within the step that ends its episode"):
        ours("CartPole-v1", autoreset_mode="NextStep")


def test_a_missing_library_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl_games.common", None)
    monkeypatch.delitem(sys.modules, "clusterenv.adapters.rl_games")
    with pytest.raises(ImportError, match="pip install rl_games"):
        importlib.import_module("clusterenv.adapters.rl_games")
