"""A worker killed with -9 in the middle of a step, with autoreset in the next or the same step."""

import os
import signal
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from tests.environments.troubles import Gate
from tests.environments.vectors import (
    SHARED_MEMORY,
    actions_for,
    cluster,
    info_of,
    oracle_of,
    row_of,
    walks,
)
from tests.environments.walks import Walk
from tests.equality import assert_same
from tests.integration.polling import eventually, kill

NUM_ENVS = 5
VICTIM = 3  # its worker has slots 3 and 4
LENGTH = 4  # so that other slots end and reset around the loss
KILLED_AT = 3
STEPS = 9


@dataclass
class Story:
    """The answers of a run in which a worker was killed, and of its oracle."""

    answers: list
    expected: list
    lost: list
    kept: list

    @property
    def loss(self):
        return self.answers[KILLED_AT]

    @property
    def before(self):
        return self.answers[KILLED_AT - 1]

    @property
    def after(self):
        return self.answers[KILLED_AT + 1]


def tell(folder, transport, mode, num_workers=2):
    """Kill the worker of slot `VICTIM` while that env is inside step number `KILLED_AT`."""
    gate, sign = folder / "gate", folder / "sign"
    makers = walks(NUM_ENVS, VICTIM, LENGTH, trouble=Gate(str(gate)), at=KILLED_AT, sign=str(sign))
    oracle = oracle_of(NUM_ENVS, LENGTH, mode)
    expected = [oracle.reset(seed=1)]
    with cluster(makers, transport, num_workers, autoreset_mode=mode) as envs:
        answers = [envs.reset(seed=1)]
        pids = envs.call("pid")
        for number in range(1, STEPS):
            actions = actions_for(NUM_ENVS, number)
            expected.append(oracle.step(actions))
            envs.step_async(actions)
            if number == KILLED_AT:
                assert eventually(sign.exists)
                kill(pids[VICTIM])
                gate.touch()
            answers.append(envs.step_wait())
    lost = [slot for slot in range(NUM_ENVS) if pids[slot] == pids[VICTIM]]
    return Story(answers, expected, lost, sorted(set(range(NUM_ENVS)) - set(lost)))


NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """A run for each autoreset mode and transport, made when it is first asked for."""
    return cache(lambda mode, over: tell(tmp_path_factory.mktemp("story"), over, mode))


@pytest.fixture(params=product((NEXT_STEP, SAME_STEP), SHARED_MEMORY), ids=str)
def story(request, stories):
    return stories(*request.param)


@pytest.fixture(params=SHARED_MEMORY)
def next_step(request, stories):
    return stories(NEXT_STEP, request.param)


@pytest.fixture(params=SHARED_MEMORY)
def same_step(request, stories):
    return stories(SAME_STEP, request.param)


def mask_of(slots):
    return np.isin(np.arange(NUM_ENVS), slots)


def test_exactly_the_slots_of_the_killed_worker_are_marked(story):
    assert story.lost == [3, 4]
    *_, infos = story.loss
    assert_same(infos["env_lost"], mask_of(story.lost))
    assert_same(infos["_env_lost"], mask_of(story.lost))


def test_the_loss_is_reported_once(story):
    assert sum("env_lost" in answer[-1] for answer in story.answers) == 1


def test_lost_slots_are_truncated_without_reward(story):
    _, rewards, terminated, truncated, _ = story.loss
    assert not rewards[story.lost].any()
    assert not terminated[story.lost].any()
    assert truncated[story.lost].all()


def test_other_slots_go_on_as_if_nothing_happened(story):
    for number, (answer, expected) in enumerate(zip(story.answers, story.expected, strict=True)):
        for slot in story.kept:
            place = f"step {number}, slot {slot}"
            assert_same(row_of(answer, slot), row_of(expected, slot), place)


def test_the_shape_of_a_batch_never_changes(story):
    for answer, expected in zip(story.answers, story.expected, strict=True):
        for array, other in zip(answer[:-1], expected[:-1], strict=True):
            assert (array.shape, array.dtype) == (other.shape, other.dtype)


def test_next_step_gives_the_last_good_observation_with_the_loss(next_step):
    assert_same(next_step.loss[0][next_step.lost], next_step.before[0][next_step.lost])


def test_next_step_gives_the_replacements_reset_one_step_later(next_step):
    for slot in next_step.lost:
        observation, reward, terminated, truncated, info = row_of(next_step.after, slot)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info == {"start": observation[0]}


def test_same_step_gives_the_replacements_reset_with_the_loss(same_step):
    for slot in same_step.lost:
        observation, *_, info = row_of(same_step.loss, slot)
        assert info["start"] == observation[0]


def test_same_step_gives_the_last_good_observation_as_final(same_step):
    for slot in same_step.lost:
        info = row_of(same_step.loss, slot)[-1]
        assert_same(info["final_obs"], same_step.before[0][slot])


def test_restarted_slots_play_whole_episodes_again(story):
    restarted_at = KILLED_AT + (0 if "start" in info_of(story.loss[-1], VICTIM) else 1)
    for slot in story.lost:
        for age in range(1, LENGTH):
            assert row_of(story.answers[restarted_at + age], slot)[-1] == {"age": age}


def test_restarted_slots_do_not_repeat_their_first_episode(story):
    first, _ = story.answers[0]
    again = story.after[0] if "start" in info_of(story.after[-1], VICTIM) else story.loss[0]
    assert not np.isin(again[story.lost], first).any()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_the_same_loss_gives_the_same_numbers_again(mode, stories, tmp_path):
    again = tell(tmp_path, "shared_memory", mode)
    for transport in SHARED_MEMORY:
        assert_same(again.answers, stories(mode, transport).answers, transport)


def test_all_slots_may_be_lost_at_once(tmp_path):
    story = tell(tmp_path, "shared_memory", NEXT_STEP, num_workers=1)
    assert story.lost == list(range(NUM_ENVS))
    assert story.loss[-1]["env_lost"].all()
    assert story.after[-1]["_start"].all()


class Deadly:
    """Whoever packs it is killed."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAnswering(Walk):
    """A walk whose worker is killed after it has written its second step, and before it says so."""

    def _info(self):
        return {"deadly": Deadly()} if self.age == 2 else {}


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_what_was_written_but_not_answered_is_not_seen(mode):
    makers = [Walk, Walk, Walk, DiesAnswering]
    with cluster(makers, num_workers=2, autoreset_mode=mode) as envs:
        envs.reset(seed=1)
        actions = actions_for(len(makers))
        before, *_ = envs.step(actions)
        observations, rewards, _, truncated, infos = envs.step(actions)
        assert infos["env_lost"].tolist() == [False, False, True, True]
        assert truncated.tolist() == [False, False, True, True]
        assert (rewards[2:] == 0.0).all()
        seen = observations[2:] if mode is NEXT_STEP else np.stack(infos["final_obs"][2:])
        assert np.array_equal(seen, before[2:])


class Panorama(Walk):
    """A walk whose observations are so large that they go to the arena one by one."""

    observation_space = Box(-1e6, 1e6, (1 << 10,), np.float64)

    def reset(self, **options):
        position, info = super().reset(**options)
        return np.resize(position, 1 << 10), info

    def step(self, action):
        position, *rest = super().step(action)
        return np.resize(position, 1 << 10), *rest


class DiesStepping(Panorama):
    """Its worker is killed in its second step, when the envs before it have written theirs."""

    def step(self, action):
        if self.age == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_what_was_written_one_by_one_but_not_answered_is_not_seen(transport):
    makers = [Panorama, Panorama, Panorama, DiesStepping]
    with cluster(makers, transport, num_workers=2) as envs:
        envs.reset(seed=1)
        actions = actions_for(len(makers))
        before, *_ = envs.step(actions)
        observations, *_, infos = envs.step(actions)
        assert infos["env_lost"].tolist() == [False, False, True, True]
        assert np.array_equal(observations[2:], before[2:])
        assert not np.array_equal(observations[:2], before[:2])
        after, *_ = envs.step(actions)
        assert not np.array_equal(after[2:], before[2:])
