"""Steppers, rows and batch together give what SyncVectorEnv gives, without any process."""

import os
from copy import deepcopy

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from clusterenv.head.batch import Batch
from clusterenv.memory.segments import allocate
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.batched_infos import split_infos
from clusterenv.plain.infos import unpack_infos
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import unpack
from clusterenv.worker.rows import Landing, RowWriter
from clusterenv.worker.stepper import EnvStepper, UserCodeError
from clusterenv.worker.vector_stepper import VectorStepper
from tests.environments.counting import CounterEnv
from tests.environments.faults import FailingEnv, LooseEnv
from tests.environments.sampling import SpaceEnv
from tests.environments.spaces import ALL_SPACES
from tests.equality import assert_same

MODES = list(AutoresetMode)
every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
NUM_ENVS = 3
BOX = Box(0, 255, (32, 32), np.uint8)


class Bench:
    """A stepper whose outcomes go through shared rows into a batch, as from worker to head."""

    lands = False
    """Whether results go to their rows one by one."""

    def __init__(self, stepper, vector_env):
        self.stepper, self.env = stepper, vector_env
        leaves = leaves_of(vector_env.single_observation_space)
        fd = os.memfd_create("test")
        allocate(fd, SharedRows.size_of(NUM_ENVS, None, leaves))
        host, worker = (SharedRows(fd, range(NUM_ENVS), 1, None, leaves) for _ in range(2))
        os.close(fd)
        self.rows = RowWriter(worker, 0, leaves, trusted=True)
        self.batch = Batch(vector_env.single_observation_space, host.results)

    def reset(self, slots, seed=None, options=None):
        seeds = [None if seed is None else seed + slot for slot in slots]
        self.take(slots, self.stepper.reset(slots, seeds, deepcopy(options)))
        return self.batch.observations(copy=True), self.infos()

    def step(self, actions):
        if not isinstance(actions, np.ndarray):
            actions = list(iterate(self.env.action_space, actions))
        slots = tuple(range(NUM_ENVS))
        landing = self.rows.landing(1, slots) if self.lands else None
        self.take(slots, self.stepper.step(slots, actions, landing))
        batch = self.batch
        flags = (batch.rewards.copy(), batch.terminated.copy(), batch.truncated.copy())
        return (batch.observations(copy=True), *flags, self.infos())

    def infos(self):
        return self.batch.infos.take(self.env._add_info)

    def take(self, slots, outcome):
        self.rows.write(1, slots, outcome)
        reply = self.rows.rest(1, outcome)
        if reply.objects:
            self.batch.put_objects(slots, unpack(reply.objects, allow_pickle=True))
        if reply.infos:
            self.batch.infos.put(unpack_infos(reply.infos, allow_pickle=True), slots)


def env_bench(factory, mode, slots=range(NUM_ENVS)):
    envs = [factory() for _ in slots]
    return Bench(EnvStepper(envs, slots, mode, [0]), SyncVectorEnv([factory] * NUM_ENVS))


def vector_bench(factory, mode):
    env = SyncVectorEnv([factory] * NUM_ENVS, autoreset_mode=mode)
    return Bench(VectorStepper(env, tuple(range(NUM_ENVS))), env)


def assert_equals_sync(bench, factory, mode, steps=25):
    oracle = SyncVectorEnv([factory] * NUM_ENVS, autoreset_mode=mode)
    everyone = tuple(range(NUM_ENVS))
    assert_same(bench.reset(everyone, 5, {"a": 1}), oracle.reset(seed=5, options={"a": 1}))
    oracle.action_space.seed(0)
    for _ in range(steps):
        actions = oracle.action_space.sample()
        expected = oracle.step(deepcopy(actions))
        assert_same(bench.step(deepcopy(actions)), expected)
        ended = np.logical_or(expected[2], expected[3])
        if mode is AutoresetMode.DISABLED and ended.any():
            slots = tuple(int(slot) for slot in np.flatnonzero(ended))
            assert_same(bench.reset(slots, options={}), oracle.reset(options={"reset_mask": ended}))


FACTORIES = {name: lambda space=space: SpaceEnv(space) for name, space in ALL_SPACES.items()}
FACTORIES |= {
    "an env that reuses its buffer": lambda: CounterEnv(reuse=True),
    "an env whose observations need a cast": LooseEnv,
}
# SyncVectorEnv itself overwrites the final observation of an env that reuses its buffer.
CASES = [
    (name, mode)
    for name in FACTORIES
    for mode in MODES
    if (name, mode) != ("an env that reuses its buffer", AutoresetMode.SAME_STEP)
]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=str)
def test_single_envs_give_what_sync_vector_env_gives(name, mode):
    factory = FACTORIES[name]
    assert_equals_sync(env_bench(factory, mode), factory, mode)


class NeedsACast(SpaceEnv):
    """Its observations have more digits than its space."""

    def __init__(self):
        super().__init__(Box(-1.0, 1.0, (2, 3), np.float32))

    def reset(self, **options):
        observation, infos = super().reset(**options)
        return observation.astype(np.float64), infos

    def step(self, action):
        observation, *rest = super().step(action)
        return observation.astype(np.float64), *rest


@every_mode
@pytest.mark.parametrize("factory", [NeedsACast, lambda: SpaceEnv(BOX)])
def test_observations_that_land_one_by_one_are_the_same(factory, mode):
    bench = env_bench(factory, mode)
    bench.lands = True
    assert_equals_sync(bench, factory, mode)


@every_mode
@pytest.mark.parametrize("name", ["box-float32", "dict-of-everything", "text"])
def test_a_ready_vector_env_gives_what_it_gives(name, mode):
    assert_equals_sync(vector_bench(FACTORIES[name], mode), FACTORIES[name], mode)


@pytest.mark.parametrize("lands", [False, True])
def test_a_final_observation_survives_an_env_that_reuses_its_buffer(lands):
    bench = env_bench(lambda: CounterEnv(reuse=True, episode_length=1), AutoresetMode.SAME_STEP)
    if lands:
        bench.lands = True
    start, _ = bench.reset((0, 1, 2), seed=1)
    *_, infos = bench.step(np.zeros(NUM_ENVS, int))
    np.testing.assert_array_equal(np.stack(infos["final_obs"]), start + 1)


class TooLarge(CounterEnv):
    """An env whose second observation does not fit its space."""

    def __init__(self):
        super().__init__(reuse=False)

    def step(self, action):
        _, *rest = super().step(action)
        return np.zeros(4, np.float32), *rest


def test_an_observation_that_cannot_land_is_an_error_of_its_slot():
    bench = env_bench(TooLarge, AutoresetMode.NEXT_STEP)
    bench.lands = True
    bench.reset((0, 1, 2))
    with pytest.raises(UserCodeError) as caught:
        bench.step(np.zeros(NUM_ENVS, int))
    assert caught.value.slot == 0
    assert "does not fit the observation space: expected (3,) float32" in str(
        caught.value.__cause__
    )


class RewardInWords(CounterEnv):
    """An env whose reward is no number."""

    def __init__(self, reward):
        super().__init__(reuse=False)
        self.reward = reward

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.reward, *rest


def test_a_reward_that_is_no_number_is_an_error_of_its_slot():
    bench = env_bench(lambda: RewardInWords("a lot"), AutoresetMode.NEXT_STEP)
    bench.lands = True
    bench.reset((0, 1, 2))
    with pytest.raises(UserCodeError) as caught:
        bench.step(np.zeros(NUM_ENVS, int))
    assert caught.value.slot == 0
    assert "could not convert string to float: 'a lot'" in str(caught.value.__cause__)


def test_no_reward_at_all_is_what_it_is_in_sync_vector_env():
    bench = env_bench(lambda: RewardInWords(None), AutoresetMode.NEXT_STEP)
    bench.lands = True
    bench.reset((0, 1, 2))
    _, rewards, *_ = bench.step(np.zeros(NUM_ENVS, int))
    sync = SyncVectorEnv([lambda: RewardInWords(None)] * NUM_ENVS)
    sync.reset()
    assert_same(rewards, sync.step(np.zeros(NUM_ENVS, int))[1])


def test_results_land_in_arrays_of_their_own_too():
    stepper = EnvStepper([SpaceEnv(BOX) for _ in range(2)], (4, 7), AutoresetMode.SAME_STEP, [0])
    twin = EnvStepper([SpaceEnv(BOX) for _ in range(2)], (4, 7), AutoresetMode.SAME_STEP, [0])
    for one in (stepper, twin):
        one.reset((4, 7), [1, 2], None)
    landing = Landing.of_size(2, leaves_of(BOX)[0])
    for _ in range(20):
        landed = stepper.step_for_rollout((4, 7), [0, 0], landing)
        plain = twin.step_for_rollout((4, 7), [0, 0])
        assert landed.landed
        np.testing.assert_array_equal(landing.observations, np.stack(plain.observations))
        assert landing.rewards.tolist() == list(plain.rewards)
        assert landing.terminated.tolist() == list(plain.terminated)
        assert landing.truncated.tolist() == list(plain.truncated)


@pytest.mark.parametrize(
    "space", [Discrete(3), Text(3), Dict(), Dict(a=BOX), Tuple((BOX, BOX))], ids=str
)
def test_only_observations_that_are_one_array_land(space):
    assert not Landing.is_possible(leaves_of(space))
    assert Landing.is_possible(leaves_of(BOX))


# Single envs.


def test_stepping_an_episode_that_is_over_is_an_error_where_autoreset_is_disabled():
    bench = env_bench(lambda: CounterEnv(False, episode_length=1), AutoresetMode.DISABLED)
    bench.reset((0, 1, 2))
    bench.step(np.zeros(NUM_ENVS, int))
    with pytest.raises(UserCodeError) as caught:
        bench.step(np.zeros(NUM_ENVS, int))
    assert isinstance(caught.value.__cause__, AssertionError)
    assert "the episode of slot 0 is over" in str(caught.value.__cause__)


@every_mode
def test_an_env_that_raises_is_named_with_its_action(mode):
    bench = env_bench(FailingEnv, mode)
    bench.reset((0, 1, 2))
    with pytest.raises(UserCodeError) as caught:
        bench.step(np.array([0, 1, 0]))
    assert (caught.value.slot, caught.value.action) == (1, 1)
    assert str(caught.value.__cause__) == "action 1 is broken"


class Odd(CounterEnv):
    """An env whose step returns something else where its action is 1."""

    def __init__(self, result):
        super().__init__(reuse=False)
        self.result = result

    def step(self, action):
        result = super().step(action)
        return self.result if action == 1 else result


NO_STEPS = {
    "nothing": None,
    "four values": (np.zeros(3), 0.0, False, {}),
    "six values": (np.zeros(3), 0.0, False, False, {}, {}),
    "flags": (np.zeros(3), 0.0, np.array([True, False]), False, {}),
}


@pytest.mark.parametrize("actions", [[0, 1, 0], [0, 1, 1], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize("result", NO_STEPS.values(), ids=NO_STEPS)
def test_an_env_that_returns_no_step_is_named_with_its_action(result, lands, actions):
    bench = env_bench(lambda: Odd(result), AutoresetMode.NEXT_STEP)
    if lands:
        bench.lands = True
    bench.reset((0, 1, 2))
    with pytest.raises(UserCodeError) as caught:
        bench.step(np.array(actions))
    assert (caught.value.slot, caught.value.action) == (actions.index(1), 1)
    assert isinstance(caught.value.__cause__, TypeError | ValueError)


def test_an_env_that_raises_in_reset_is_named():
    bench = env_bench(FailingEnv, AutoresetMode.NEXT_STEP)
    with pytest.raises(UserCodeError) as caught:
        bench.reset((0, 1, 2), seed=11)
    assert caught.value.slot == 2


@every_mode
def test_the_slot_whose_env_runs_is_noted(mode):
    notes, seen = [0], []

    class Watcher(CounterEnv):
        def step(self, action):
            seen.append(notes[0])
            return super().step(action)

    stepper = EnvStepper([Watcher(False), Watcher(False)], (4, 7), mode, notes)
    stepper.reset((4, 7), [None, None], None)
    stepper.step((4, 7), [0, 0])
    assert seen == [5, 8]


def test_calls_and_attributes_go_to_every_env_in_slot_order():
    stepper = EnvStepper([CounterEnv(False), CounterEnv(False)], (4, 7), MODES[0], [0])
    stepper.set_attr("episode_length", [5, 6])
    assert stepper.call("episode_length", (), {}) == [5, 6]


# Ready vector envs.


@pytest.mark.parametrize("name", ALL_SPACES)
def test_some_slots_of_a_vector_env_can_be_reset_alone(name):
    bench = vector_bench(FACTORIES[name], AutoresetMode.NEXT_STEP)
    before, _ = bench.reset((0, 1, 2), seed=1)
    after, infos = bench.reset((0, 2), seed=9)
    oracle = SyncVectorEnv([FACTORIES[name]] * NUM_ENVS)
    assert_same(before, oracle.reset(seed=1)[0])
    mask = np.array([True, False, True])
    assert_same((after, infos), oracle.reset(seed=[9, None, 11], options={"reset_mask": mask}))


def test_some_slots_of_a_vector_env_cannot_be_stepped_alone():
    bench = vector_bench(FACTORIES["discrete"], AutoresetMode.NEXT_STEP)
    bench.reset((0, 1, 2))
    with pytest.raises(UserCodeError) as caught:
        bench.stepper.step((0, 2), np.zeros(2, int))
    assert "send actions for slots 0..2 at once" in str(caught.value.__cause__)


def test_a_vector_env_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a VectorEnv of 3 envs for 2 slots"):
        VectorStepper(SyncVectorEnv([LooseEnv] * 3), (0, 1))


def test_split_infos_merge_to_what_they_were():
    env = SyncVectorEnv([FACTORIES["discrete"]] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=3)
    for _ in range(40):
        *_, infos = env.step(np.zeros(NUM_ENVS, int))
        merged = {}
        for row, info in enumerate(split_infos(deepcopy(infos), NUM_ENVS)):
            merged = env._add_info(merged, info, row)
        assert_same(merged, infos)


def test_an_info_without_a_mask_belongs_to_every_env():
    assert split_infos({"x": np.array([1, 2])}, 2) == [{"x": 1}, {"x": 2}]
