"""`async_reset`, `recv` and `send`: each slot lives as if it were stepped alone."""

from copy import deepcopy
from functools import partial
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tests.contract.transports import IN_TURNS, TRANSPORTS, and_on_four_hosts, cluster_env
from tests.environments.sampling import INFO_KINDS, SpaceEnv
from tests.environments.spaces import ALL_SPACES
from tests.equality import assert_same

NUM_ENVS = 5
SEED = 30
# The dtype of a "mixed" info depends on which slots share its batch.
KINDS = tuple(kind for kind in INFO_KINDS if kind != "mixed")
ENVS = {
    "dict": partial(SpaceEnv, ALL_SPACES["dict"], info_kinds=KINDS),
    "everything": partial(SpaceEnv, ALL_SPACES["dict-of-everything"], info_kinds=KINDS),
    "CartPole-v1": partial(gym.make, "CartPole-v1"),
}


def batch_of(space, elements):
    return concatenate(space, elements, create_empty_array(space, n=len(elements)))


def info_of(infos, row):
    """What one row contributed to the merged infos."""
    return {
        key: info_of(value, row) if isinstance(value, dict) else value[row]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][row]
    }


def transitions_of(batched_space, answer):
    """One (observation, reward, terminated, truncated, info) for each row of an answer."""
    observations, *numbers, infos = answer
    for row, observation in enumerate(iterate(batched_space, observations)):
        yield observation, *(array[row] for array in numbers), info_of(infos, row)


def collect(envs, batch_size, length):
    """Play until each slot has `length` transitions; return them and the actions, by slot."""
    batched_space = batch_space(envs.single_observation_space, batch_size)
    action_spaces = [deepcopy(envs.single_action_space) for _ in range(NUM_ENVS)]
    for slot, space in enumerate(action_spaces):
        space.seed(slot)
    streams, actions = [[] for _ in range(NUM_ENVS)], [[] for _ in range(NUM_ENVS)]
    envs.async_reset(seed=SEED)
    while min(map(len, streams)) < length:
        *arrays, infos = envs.recv()
        slots = infos.pop("env_id")
        infos.pop("_env_id", None)
        for slot, transition in zip(
            slots, transitions_of(batched_space, (*arrays, infos)), strict=True
        ):
            streams[slot].append(transition)
            actions[slot].append(action_spaces[slot].sample())
        chosen = [actions[slot][-1] for slot in slots]
        envs.send(batch_of(envs.single_action_space, chosen), slots)
    return streams, actions


def replay(make, mode, slot, actions):
    """The transitions of the same env, alone in a SyncVectorEnv, under these actions."""
    envs = SyncVectorEnv([make], autoreset_mode=mode)
    observations, infos = envs.reset(seed=SEED + slot)
    start = observations, np.zeros(1), np.zeros(1, np.bool_), np.zeros(1, np.bool_), infos
    yield from transitions_of(envs.observation_space, start)
    for action in actions:
        answer = envs.step(batch_of(envs.single_action_space, [action]))
        yield from transitions_of(envs.observation_space, answer)


MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def cases():
    """1, 2 and 3 workers over every transport, with rotating envs and modes."""
    for number, (workers, transport) in enumerate(product((1, 2, 3), IN_TURNS)):
        env = list(ENVS)[(number + workers) % len(ENVS)]
        yield env, workers, transport, MODES[number % len(MODES)]


@pytest.mark.parametrize(("env", "workers", "transport", "mode"), and_on_four_hosts(cases()))
def test_each_slot_equals_an_env_stepped_alone(env, workers, transport, mode):
    make, batch_size = ENVS[env], workers + 1
    with cluster_env(
        transport, make, NUM_ENVS, workers, batch_size=batch_size, autoreset_mode=mode
    ) as envs:
        streams, actions = collect(envs, batch_size, length=40)
    for slot in range(NUM_ENVS):
        # The last action was sent, but what it led to was not received.
        expected = list(replay(make, mode, slot, actions[slot][:-1]))
        assert_same(streams[slot], expected, f"slot {slot}")


@pytest.fixture(params=TRANSPORTS)
def envs(request):
    """Four CartPoles on two workers, two at a time."""
    with cluster_env(request.param, "CartPole-v1", 4, 2, batch_size=2) as envs:
        yield envs


def actions_for(slots):
    return np.zeros(len(slots), np.int64)


def test_a_batch_has_batch_size_rows_and_names_its_slots(envs):
    envs.async_reset(seed=1)
    seen = []
    for _ in range(2):
        observations, rewards, terminated, truncated, infos = envs.recv()
        slots = infos["env_id"]
        assert slots.dtype.kind == "i"
        assert slots.shape == rewards.shape == terminated.shape == truncated.shape == (2,)
        assert observations.shape == (2, 4)
        seen += slots.tolist()
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_slot_takes_one_action_at_a_time(envs):
    envs.async_reset()
    slots = envs.recv()[-1]["env_id"]
    envs.send(actions_for(slots), slots)
    with pytest.raises(AlreadyPendingCallError, match=str(slots[0])):
        envs.send(actions_for(slots[:1]), slots[:1])
    envs.recv()


def test_a_slot_that_is_still_resetting_takes_no_action(envs):
    envs.async_reset()
    slots = set(envs.recv()[-1]["env_id"].tolist())
    waiting = np.array(sorted(set(range(4)) - slots))
    with pytest.raises(AlreadyPendingCallError, match=str(waiting[0])):
        envs.send(actions_for(waiting), waiting)


@pytest.mark.parametrize("unknown", [4, -1])
def test_an_unknown_slot_is_refused(envs, unknown):
    envs.async_reset()
    envs.recv()
    with pytest.raises((ValueError, IndexError), match=str(unknown)):
        envs.send(actions_for([unknown]), np.array([unknown]))


def test_a_slot_may_not_be_named_twice_in_one_send(envs):
    envs.async_reset()
    slot = envs.recv()[-1]["env_id"][0]
    with pytest.raises((ValueError, AlreadyPendingCallError), match=str(slot)):
        envs.send(actions_for([slot, slot]), np.array([slot, slot]))


def test_each_slot_needs_its_action(envs):
    envs.async_reset()
    slots = envs.recv()[-1]["env_id"]
    with pytest.raises(ValueError):
        envs.send(actions_for(slots)[:1], slots)


def test_a_refused_send_sends_nothing(envs):
    envs.async_reset(seed=1)
    slots = envs.recv()[-1]["env_id"]
    with pytest.raises(ValueError):
        envs.send(actions_for([0, 0]), np.array([slots[0], 4]))
    envs.send(actions_for(slots), slots)


def test_receiving_and_sending_need_a_reset_first(envs):
    with pytest.raises(ResetNeeded):
        envs.recv()
    with pytest.raises(ResetNeeded):
        envs.send(actions_for([0]), np.array([0]))


def test_there_must_be_something_to_receive(envs):
    envs.async_reset()
    envs.recv()
    envs.recv()
    with pytest.raises(NoAsyncCallError):
        envs.recv()


def test_lockstep_works_again_once_everything_was_received(envs):
    oracle = SyncVectorEnv([ENVS["CartPole-v1"]] * 4)
    envs.async_reset()
    envs.recv()
    envs.recv()
    assert_same(envs.reset(seed=5), oracle.reset(seed=5))
    actions = oracle.action_space.sample()
    assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("size", [0, -1, 4])
def test_the_batch_size_must_fit_the_number_of_envs(size):
    with pytest.raises(ValueError, match="batch_size"):
        cluster_env("in-process", "CartPole-v1", 3, 1, batch_size=size)


@pytest.mark.always_on_four_hosts
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_batch_of_all_slots_equals_lockstep(transport):
    make = ENVS["dict"]
    oracle = SyncVectorEnv([make] * 5)
    oracle.action_space.seed(0)
    with cluster_env(transport, make, 5, 2, batch_size=5) as envs:
        envs.async_reset(seed=SEED)
        flags = np.zeros(5, np.bool_)
        observations, infos = oracle.reset(seed=SEED)
        expected = observations, np.zeros(5), flags, flags, infos
        for _ in range(60):
            *actual, infos = envs.recv()
            np.testing.assert_array_equal(infos.pop("env_id"), np.arange(5))
            infos.pop("_env_id", None)
            assert_same((*actual, infos), expected)
            actions = oracle.action_space.sample()
            envs.send(actions, np.arange(5))
            expected = oracle.step(actions)
