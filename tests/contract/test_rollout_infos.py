"""The infos of rollouts and streams are those of a SyncVectorEnv that steps the same actions."""

import os
import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from itertools import islice

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from clusterenv.backends.vector import VectorBackend
from tests.contract.policies import numpy_policy
from tests.contract.transports import TRANSPORTS, cluster_env
from tests.environments.counting import CounterEnv
from tests.environments.sampling import INFO_KINDS, SpaceEnv
from tests.environments.walks import Walk
from tests.equality import assert_same

NUM_ENVS = 5
SEED = 50
# Gymnasium makes arrays of whatever number comes first.
KINDS = tuple(kind for kind in INFO_KINDS if kind != "mixed")
Talkative = partial(SpaceEnv, Box(-1.0, 1.0, (2,), np.float64), Discrete(2), 6, KINDS)
NUMBERS = {"int": "i8", "float": "f8", "bool": "?", "float32": "f4", "int16": "i2", "array": "f8"}


def assert_said(infos, t, expected):
    """Fail unless step `t` has what a vector env said in it."""
    said = {name for name in infos if name[0] != "_" and infos[f"_{name}"][t].any()}
    assert said == {name for name in expected if name[0] != "_"} - {"final_obs"}
    for name in said:
        mask = infos[f"_{name}"][t]
        assert mask.tolist() == expected[f"_{name}"].tolist(), name
        if isinstance(expected[name], dict):
            assert_said(infos[name], t, expected[name])
            continue
        for column in np.flatnonzero(mask):
            assert_same(infos[name][t, column], expected[name][column], name)


def oracle(make, num_envs=NUM_ENVS):
    envs = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=SEED)
    return envs


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture(scope="module")
def live(transport):
    with cluster_env(transport, Talkative, NUM_ENVS, 2) as envs:
        yield envs


@pytest.fixture
def talkative(live):
    live.reset(seed=SEED)
    return live


def test_every_kind_of_info_is_that_of_a_sync_vector_env(talkative):
    policy, expected, num_ends = numpy_policy(talkative), oracle(Talkative), 0
    for num_steps in (9, 1, 14):
        rollout = talkative.rollout(policy, num_steps)
        for t in range(num_steps):
            *_, infos = expected.step(rollout.actions[t])
            assert_said(rollout.infos, t, infos)
        num_ends += len(rollout.finals.steps)
    assert num_ends > NUM_ENVS
    expected.close()


def test_numbers_are_arrays_with_a_time_axis(talkative):
    infos = talkative.rollout(numpy_policy(talkative), 4).infos
    for name, dtype in NUMBERS.items():
        shape = (4, NUM_ENVS, 3) if name == "array" else (4, NUM_ENVS)
        assert (infos[name].dtype, infos[name].shape) == (np.dtype(dtype), shape)
    assert infos["numpy_bool"].dtype == bool
    assert infos["text"].dtype == object
    assert infos["_text"].dtype == bool


def test_fragments_of_a_stream_have_infos(talkative):
    policy, played = numpy_policy(talkative), {slot: [] for slot in range(NUM_ENVS)}
    talkative.publish(policy)
    with closing(talkative.stream(5)) as stream:
        for fragment in islice(stream, 6):
            for column, slot in enumerate(fragment.slots.tolist()):
                played[slot].append((fragment, column))
    for slot, fragments in played.items():
        env = Talkative()
        env.reset(seed=SEED + slot)
        for fragment, column in fragments:
            for t in range(fragment.num_steps):
                *_, terminated, truncated, info = env.step(fragment.actions[t, column])
                said = said_in(fragment.infos, t, column)
                if terminated or truncated:
                    assert_alike(said.pop("final_info", {}), info)
                    _, info = env.reset()
                assert_alike(said, info)


def said_in(infos, t, column):
    """What one env said in one step."""
    return {
        name: said_in(infos[name], t, column)
        if isinstance(infos[name], Mapping)
        else infos[name][t, column]
        for name in infos
        if name[0] != "_" and infos[f"_{name}"][t, column]
    }


def assert_alike(said, info):
    assert said.keys() == info.keys()
    for name in {"int", "text", "action", "float"} & info.keys():
        assert said[name] == info[name]


def test_infos_can_be_left_out(talkative):
    policy = numpy_policy(talkative)
    assert dict(talkative.rollout(policy, 14, infos=False).infos) == {}
    with closing(talkative.stream(14, infos=False)) as stream:
        assert dict(next(stream).infos) == {}
    assert "text" in talkative.rollout(policy, 14).infos


def test_envs_that_say_nothing_have_no_infos(transport):
    with cluster_env(transport, "CartPole-v1", 3, 2) as envs:
        envs.reset(seed=SEED)
        rollout = envs.rollout(numpy_policy(envs), 60)
        assert len(rollout.finals.steps) > 0
        assert dict(rollout.infos) == {}


def test_an_episodes_statistics_are_there_where_it_ended(transport):
    wrappers = [RecordEpisodeStatistics]
    with cluster_env(transport, partial(Walk, 7), 4, 2, wrappers=wrappers) as envs:
        rollout = envs.rollout(numpy_policy(envs), 20)
    finals, final_info = rollout.finals, rollout.infos["final_info"]
    ends = finals.steps, finals.columns
    assert len(finals.steps) == 4 * 2
    assert np.array_equal(rollout.infos["_final_info"], rollout.terminated | rollout.truncated)
    assert np.allclose(final_info["episode"]["r"][ends], rollout.episodes.returns)
    assert np.array_equal(final_info["episode"]["l"][ends], rollout.episodes.lengths)
    assert final_info["episode"]["r"].shape == (20, 4)
    assert final_info["episode"]["_r"].sum() == len(finals.steps)
    assert (final_info["age"][ends] == 7).all()
    assert rollout.infos["age"][0].tolist() == [1] * 4
    assert np.array_equal(rollout.infos["_age"], ~rollout.infos["_final_info"])
    assert np.array_equal(rollout.infos["_start"], rollout.infos["_final_info"])


def test_arrays_that_an_env_uses_again_are_copied(transport):
    with cluster_env(transport, partial(CounterEnv, True, 100), 2, 1) as envs:
        envs.reset(seed=SEED)
        rollout = envs.rollout(numpy_policy(envs), 10)
        assert np.array_equal(rollout.infos["buffer"], rollout.next_observations)


class Uneven(Walk):
    """Says something else in each slot: a number, a dict, an array, a larger array, nothing."""

    def _info(self):
        slot = self.np_random_seed - SEED
        grid = np.full((40, 40), self.age)
        return [{"a": self.age}, {"a": {"b": 0.5}}, {"a": np.ones(2)}, {"big": grid}, {}][slot]


def test_slots_may_say_different_things(transport):
    with cluster_env(transport, Uneven, 5, 2) as envs:
        envs.reset(seed=SEED)
        infos = envs.rollout(numpy_policy(envs), 3).infos
    assert infos["_a"].tolist() == [[True, True, True, False, False]] * 3
    assert infos["a"]["b"][:, 1].tolist() == [0.5] * 3
    # Where a name is a dict elsewhere, its values have no name of their own.
    assert infos["a"][""][:, 0].tolist() == [1, 2, 3]
    assert infos["a"][""][0, 2].tolist() == [1.0, 1.0]
    assert infos["big"].dtype == object
    assert infos["big"][2, 3].shape == (40, 40)
    assert infos["big"][2, 0] is None


def test_ready_vector_envs_have_infos_too(transport):
    make, mode = partial(Walk, 5), AutoresetMode.SAME_STEP
    backend = VectorBackend(lambda n: SyncVectorEnv([make] * n, autoreset_mode=mode))
    with cluster_env(transport, backend, 4, 2, autoreset_mode=mode) as envs:
        envs.reset(seed=SEED)
        expected = oracle(make, 4)
        rollout = envs.rollout(numpy_policy(envs), 12)
        for t in range(12):
            *_, infos = expected.step(rollout.actions[t])
            assert_said(rollout.infos, t, infos)


def test_a_rollout_is_shown_on_one_screen(talkative):
    policy = numpy_policy(talkative)
    lines = repr(talkative.rollout(policy, 14)).splitlines()
    first = rf"Rollout of 14 steps of {NUM_ENVS} slots, version {talkative.version}, \d+ episodes"
    assert re.match(first, lines[0])
    assert f"  observations: float64 (15, {NUM_ENVS}, 2)" in lines
    assert len(lines) <= 12
    assert max(map(len, lines)) < 2000
    with closing(talkative.stream(3)) as stream:
        assert repr(next(stream)).startswith("Fragment of 3 steps of ")


class OnlyThere:
    """Can be unpickled by workers alone."""

    def __reduce__(self):
        return _only_not_in, (os.getpid(),)


def _only_not_in(pid):
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'simulator'")


class Secretive(CounterEnv):
    """Says what the head cannot read."""

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "engine": OnlyThere(), "age": self.age}


@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_an_info_that_the_head_cannot_unpickle_costs_only_that_info(transport):
    make = partial(Secretive, reuse=False)
    with cluster_env(transport, make, 2, 1, trust_workers=True) as envs:
        envs.reset(seed=SEED)
        with pytest.warns(UserWarning, match=r"info 'engine' cannot be unpickled.*slot 0.*simul"):
            rollout = envs.rollout(numpy_policy(envs), 2)
        assert rollout.infos["age"].tolist() == [[1, 1], [2, 2]]
        assert "engine" not in rollout.infos
