"""A worker that is killed while policies act: every row is real, and says who acted."""

import os
import signal
import threading
import time
from contextlib import closing, contextmanager
from functools import partial

import numpy as np
import pytest

from clusterenv.errors import WorkerLostError
from tests import inside
from tests.contract.policies import change, distribution_of, numpy_policy
from tests.contract.replay import Life, Lives
from tests.contract.transports import PROCESSES, cluster_env
from tests.environments.counting import Count
from tests.environments.troubles import Gate
from tests.environments.walks import Troubled, Walk
from tests.integration.polling import eventually, kill, within

NUM_ENVS = 5
VICTIM = 4  # a slot of the worker that is lost
SEED = 33
LENGTH = 4


class Hit:
    """Walks of which slot 4 halts in its `at`-th step, until its worker has been killed.

    There may be more slots, on other workers.
    """

    def __init__(self, transport, folder, at, num_after=0):
        self._gate, self._sign = folder / "gate", folder / "sign"
        halting = partial(
            Troubled, Gate(str(self._gate)), "step", at, str(self._sign), length=LENGTH
        )
        makers = [*[partial(Walk, LENGTH)] * 4, halting, *[partial(Walk, LENGTH)] * num_after]
        self.envs = cluster_env(transport, makers, num_workers=2 + num_after // 2)
        self._thread = threading.Thread(target=self._strike, daemon=True)

    def __enter__(self):
        self.envs.reset(seed=SEED)
        self._pid = self.envs.call("pid")[VICTIM]
        self._thread.start()
        return self.envs

    def _strike(self):
        if eventually(self._sign.exists):
            time.sleep(0.2)  # what it said before is on its way
            kill(self._pid)
        self._gate.touch()

    def __exit__(self, *exception):
        self._gate.touch()
        self.envs.close(terminate=True)
        self._thread.join()


def lives_of_walks(num_envs=NUM_ENVS):
    return Lives(partial(Walk, LENGTH), num_envs, SEED)


def worker_of(envs, slot=VICTIM):
    return next(worker for worker in envs.workers if slot in worker.slots)


def has_been_replaced(envs):
    return worker_of(envs).incarnation > 0


def start_over(lives, slots, make=partial(Walk, LENGTH)):
    """The lost slots go on in a replacement's envs."""
    for slot in slots:
        lives.by_slot[slot] = Life(make(), inside.restart_seed(SEED, slot, 1))


def assert_log_probs(envs, weights, fragment):
    """Fail unless each column's log-probs are those of the version that it names."""
    for column, version in enumerate(fragment.versions[0]):
        found = distribution_of(
            envs.single_action_space, weights[version], fragment.observations[:-1, column]
        )
        expected = found.log_prob(fragment.actions[:, column])
        assert np.allclose(fragment.outputs["log_prob"][:, column], expected)


@pytest.mark.always_on_four_hosts
@pytest.mark.parametrize("transport", PROCESSES)
def test_a_rollout_is_collected_again_for_the_slots_of_a_killed_worker(transport, tmp_path):
    with Hit(transport, tmp_path, at=13) as envs:
        policy, lives, weights = numpy_policy(envs), lives_of_walks(), {}
        lost = worker_of(envs).slots
        for number in range(4):
            weights[number + 1] = change(policy, seed=number)
            rollout = envs.rollout(policy, 9)
            assert (rollout.versions == number + 1).all()
            if number == 1:
                assert has_been_replaced(envs)
                start_over(lives, lost)
            lives.assert_lived(rollout)
            assert_log_probs(envs, weights, rollout)
        assert sum(inside.times_replaced(envs)) == 1


@pytest.mark.parametrize("transport", PROCESSES)
def test_columns_are_in_the_order_of_slots_though_those_between_come_last(transport, tmp_path):
    with Hit(transport, tmp_path, at=13, num_after=2) as envs:
        policy, lives, lost = numpy_policy(envs), lives_of_walks(7), worker_of(envs).slots
        lives.assert_lived(envs.rollout(policy, 9))
        rollout = envs.rollout(policy, 9)
        assert has_been_replaced(envs)
        assert rollout.slots.tolist() == list(range(7))
        start_over(lives, lost)
        lives.assert_lived(rollout)


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_stream_goes_on_when_a_worker_is_killed(transport, tmp_path):
    with Hit(transport, tmp_path, at=13) as envs:
        policy, lives, weights = numpy_policy(envs), lives_of_walks(), {}
        weights[1] = {name: array.copy() for name, array in policy.weights().items()}
        envs.publish(policy)
        stream, lost, num_seen = envs.stream(9), worker_of(envs).slots, 0
        while num_seen < 4:
            fragment = next(stream)
            num_seen += VICTIM in fragment.slots
            # The first nine steps were delivered before the thirteenth.
            if num_seen == 2 and VICTIM in fragment.slots:
                start_over(lives, lost)
            lives.assert_lived(fragment)
            assert_log_probs(envs, weights, fragment)
        stream.close()
        lives_again = lives_of_walks()
        envs.reset(seed=SEED)
        lives_again.assert_lived(envs.rollout(policy, 9))


@pytest.fixture(params=PROCESSES)
def envs(request):
    with cluster_env(request.param, Count, NUM_ENVS, 2) as envs:
        envs.reset(seed=SEED)
        yield envs


def assert_real(fragment):
    ages = fragment.observations[:-1, :, 1]
    assert np.array_equal(fragment.next_observations[..., 1], ages + 1)
    assert np.array_equal(fragment.rewards, ages + 1)
    assert (fragment.episodes.lengths <= 5).all()


def test_a_worker_that_dies_between_rollouts_is_replaced(envs):
    policy, lives = numpy_policy(envs), Lives(Count, NUM_ENVS, SEED)
    lives.assert_lived(envs.rollout(policy, 7))
    lost = worker_of(envs).slots
    kill(envs.call("pid")[VICTIM])
    rollout = envs.rollout(policy, 7)
    start_over(lives, lost, Count)
    lives.assert_lived(rollout)
    lives.assert_lived(envs.rollout(policy, 7))


@pytest.mark.parametrize("call", ["evaluate", "get_attr"])
def test_a_loss_that_another_call_reports_does_not_break_the_next_rollout(envs, call):
    policy = numpy_policy(envs)
    envs.rollout(policy, 7)
    kill(envs.call("pid")[VICTIM])
    with pytest.raises(WorkerLostError, match="call it again"):
        envs.evaluate(policy, 5) if call == "evaluate" else envs.get_attr("age")
    for _ in range(2):
        assert_real(envs.rollout(policy, 7))


@contextmanager
def owing(transport, folder):
    """Envs whose second worker was lost while the first delivered a rollout of five steps."""
    with Hit(transport, folder, at=8) as envs:
        policy = numpy_policy(envs)
        envs.rollout(policy, 5)
        rollout = envs.rollout(policy, 5, wait_num=2)
        while VICTIM not in rollout.slots and not has_been_replaced(envs):
            rollout = envs.rollout(policy, 5, wait_num=2)
        yield envs, policy


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("transport", PROCESSES)
def test_a_rollout_of_another_length_may_follow_one_that_lost_a_worker(
    transport, tmp_path, is_ready
):
    with owing(transport, tmp_path) as (envs, policy):
        if is_ready:
            envs.call("poke")  # answered once the replacement is there
        for num_steps in (7, 3, 3):
            rollout = envs.rollout(policy, num_steps)
            assert rollout.slots.tolist() == list(range(NUM_ENVS))


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_stream_may_follow_a_rollout_that_lost_a_worker(transport, tmp_path):
    with owing(transport, tmp_path) as (envs, _), closing(envs.stream(3)) as stream:
        seen = set()
        while len(seen) < NUM_ENVS:
            seen.update(next(stream).slots.tolist())


def test_a_stream_that_is_left_while_a_replacement_joins_does_not_break_the_next_rollout(envs):
    policy = numpy_policy(envs)
    envs.publish(policy)
    pid = envs.call("pid")[VICTIM]
    for number, fragment in enumerate(envs.stream(7)):
        assert_real(fragment)
        if number == 3:
            kill(pid)
        if has_been_replaced(envs):
            break
    for _ in range(2):
        assert_real(envs.rollout(policy, 7))


def test_publishing_while_a_replacement_joins_does_not_break_the_stream(envs):
    policy = numpy_policy(envs)
    envs.publish(policy)
    pid, after = envs.call("pid")[VICTIM], 0
    for number, fragment in enumerate(envs.stream(7)):
        assert_real(fragment)
        change(policy, seed=number)
        envs.publish(policy)
        if number == 3:
            kill(pid)
        after += has_been_replaced(envs) and VICTIM in fragment.slots
        if after == 4:
            break
    assert_real(envs.rollout(policy, 7))


def test_a_step_with_a_policy_reports_the_loss_and_goes_on(envs):
    policy = numpy_policy(envs)
    for _ in range(3):
        envs.step(policy)
    lost = np.isin(np.arange(NUM_ENVS), worker_of(envs).slots)
    kill(envs.call("pid")[VICTIM])
    _, rewards, _, truncated, infos = envs.step(policy)
    assert truncated.tolist() == infos["env_lost"].tolist() == lost.tolist()
    assert rewards.tolist() == np.where(lost, 0.0, 4.0).tolist()
    assert infos["action"].shape == infos["log_prob"].shape == (NUM_ENVS,)
    observations, *_ = envs.step(policy)
    assert observations[:, 1].tolist() == np.where(lost, 0.0, 5.0).tolist()


@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_step_with_a_policy_says_the_same_things_where_all_workers_are_lost(envs, num_steps):
    policy = numpy_policy(envs)
    *_, usual = envs.step(policy)
    envs.reset(seed=SEED)
    for _ in range(num_steps):
        envs.step(policy)
    for pid in set(envs.call("pid")):
        kill(pid)
    other = numpy_policy(envs, seed=1)
    *_, truncated, infos = envs.step(other)
    assert truncated.all()
    assert infos["env_lost"].all()
    for name in ("action", "version", "log_prob", "value"):
        assert (infos[name].dtype, infos[name].shape) == (usual[name].dtype, usual[name].shape)
        assert not infos[name].any()
    *_, infos = envs.step(other)
    assert not infos["version"].any()  # this one only resets
    *_, infos = envs.step(other)
    assert (infos["version"] == envs.version).all()


def publish_often(envs, policy):
    """Other weights a hundred times, none of which may take long; returns the last version."""
    for number in range(100):
        change(policy, seed=number + 1)
        version = within(20.0, partial(envs.publish, policy))
    return version


@contextmanager
def standing_still(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_publishing_never_waits_for_a_worker_that_stands_still(envs):
    policy = numpy_policy(envs)
    first = envs.publish(policy)
    with standing_still(envs.call("pid")[VICTIM]):
        assert publish_often(envs, policy) == first + 100
    assert (envs.rollout(policy, 7).versions == first + 100).all()


def test_a_stream_goes_on_around_a_worker_that_stands_still(envs):
    policy = numpy_policy(envs)
    envs.publish(policy)
    pid = envs.call("pid")[VICTIM]
    with closing(envs.stream(7)) as stream:
        next(stream)
        with standing_still(pid):
            newest = publish_often(envs, policy)
            seen = [next(stream) for _ in range(12)]
            going = [fragment for fragment in seen if VICTIM not in fragment.slots]
            # What the other one had under way may still arrive.
            assert len(going) >= 10
            assert (going[-1].versions == newest).all()
        while VICTIM not in next(stream).slots:
            pass
    assert (envs.rollout(policy, 7).versions == newest).all()
