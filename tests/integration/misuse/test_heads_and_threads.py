"""Several heads at once, a head that forks, a head whose threads come and go."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from gymnasium.error import AlreadyPendingCallError

from tests import inside
from tests.environments.troubles import Gate
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks
from tests.equality import assert_same
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, within

NUM_ENVS = 3
FORKING = """
envs = ClusterEnv([Walk] * 4, num_workers=2)
oracle = SyncVectorEnv([Walk] * 4)
oracle.action_space.seed(0)
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 5)
# From Python 3.12 on, to fork a process with threads is worth a warning.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
child = os.fork()
if child == 0:
    {child}
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
check(envs, oracle, 20)
envs.close()
say("the parent is fine")
"""


def run_forking(folder, child):
    """The output of a head whose forked child runs `child` and then exits normally."""
    with HeadScript(folder, FORKING.format(child=child)) as head:
        assert head.wait() == 0, head.report()
        assert "the parent is fine" in head.output
        assert head.errors == ""
        return head.output


def test_two_heads_in_one_process_do_not_disturb_each_other():
    with cluster(walks(NUM_ENVS)) as first, cluster(walks(NUM_ENVS), "tcp") as second:
        oracles = [oracle_of(NUM_ENVS), oracle_of(NUM_ENVS)]
        for seed, (envs, oracle) in enumerate(zip((first, second), oracles, strict=True)):
            assert_same(envs.reset(seed=seed), oracle.reset(seed=seed))
        for number in range(10):
            first.step_async(actions_for(NUM_ENVS, number))
            second.step_async(actions_for(NUM_ENVS, number + 100))
            assert_same(second.step_wait(), oracles[1].step(actions_for(NUM_ENVS, number + 100)))
            assert_same(first.step_wait(), oracles[0].step(actions_for(NUM_ENVS, number)))


def test_closing_one_head_leaves_the_other_alone():
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS)) as first:
        assert_same(first.reset(seed=1), oracle.reset(seed=1))
        with cluster(walks(NUM_ENVS)) as second:
            second.reset(seed=2)
        actions = actions_for(NUM_ENVS)
        assert_same(first.step(actions), oracle.step(actions))


def test_two_head_processes_on_one_machine_do_not_disturb_each_other(tmp_path_factory):
    source = """
        envs = ClusterEnv([Walk] * 4, num_workers=2)
        oracle = SyncVectorEnv([Walk] * 4)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        say("started")
        while not os.path.exists(SIGN):
            check(envs, oracle, 1)
        envs.close()
    """
    with (
        HeadScript(tmp_path_factory.mktemp("first"), source) as first,
        HeadScript(tmp_path_factory.mktemp("second"), source) as second,
    ):
        for head in (first, second):
            head.wait_for("started")
        for head in (first, second):
            head.sign.touch()
            assert head.wait() == 0, head.report()


def test_a_forked_child_that_exits_leaves_the_run_alone(tmp_path):
    run_forking(tmp_path, "pass")


def test_a_forked_child_that_uses_the_envs_gets_a_clear_error(tmp_path):
    child = """
    from gymnasium.error import ClosedEnvironmentError
    for use in (envs.reset, envs.recv, lambda: envs.step(None), lambda: envs.call("pid")):
        try:
            use()
        except ClosedEnvironmentError as error:
            say("refused:", error)
    """
    output = run_forking(tmp_path, child)
    assert output.count("refused:") == 4
    assert "forked child" in output


def test_a_forked_child_that_closes_the_envs_leaves_the_run_alone(tmp_path):
    run_forking(tmp_path, "envs.close()")


def test_a_forked_child_that_drops_the_envs_leaves_the_run_alone(tmp_path):
    run_forking(tmp_path, "import gc; del envs; gc.collect()")


def test_a_forked_child_may_make_envs_of_its_own(tmp_path):
    child = """
    with ClusterEnv([Walk] * 2, num_workers=1) as own:
        assert_same(own.reset(seed=3)[0], SyncVectorEnv([Walk] * 2).reset(seed=3)[0])
    """
    run_forking(tmp_path, child)


def test_envs_made_in_a_thread_that_has_ended_can_be_used():
    made = []
    thread = threading.Thread(target=lambda: made.append(cluster(walks(NUM_ENVS))))
    thread.start()
    thread.join()
    oracle = oracle_of(NUM_ENVS)
    with made[0] as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for number in range(5):
            actions = actions_for(NUM_ENVS, number)
            assert_same(envs.step(actions), oracle.step(actions))


USES = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(actions_for(NUM_ENVS)),
    "step, given a list": lambda envs: envs.step(actions_for(NUM_ENVS).tolist()),
    "step_wait": lambda envs: envs.step_wait(),
    "async_reset": lambda envs: envs.async_reset(),
    "recv": lambda envs: envs.recv(),
    "send": lambda envs: envs.send(actions_for(1), [0]),
    "call": lambda envs: envs.call("poke"),
    "set_attr": lambda envs: envs.set_attr("mood", "odd"),
    "rollout": lambda envs: envs.rollout(None, 2),
    "stream": lambda envs: envs.stream(2),
    "evaluate": lambda envs: envs.evaluate(None, 2),
}


def assert_others_are_refused(envs):
    for name, use in USES.items():
        message = f"Calling `{name.partition(',')[0]}` while another thread is in a call"
        with pytest.raises(AlreadyPendingCallError, match=message):
            use(envs)


@pytest.fixture
def gate(tmp_path):
    """Slot 1 makes the sign when it is stepped, and goes on when the gate is there."""
    return SimpleNamespace(path=tmp_path / "gate", sign=tmp_path / "sign")


def gated(transport, gate):
    trouble = {"trouble": Gate(str(gate.path)), "sign": str(gate.sign)}
    return cluster(walks(NUM_ENVS, troubled=1, **trouble), transport)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_a_second_thread_is_refused_during_a_step_and_disturbs_nothing(transport, gate):
    oracle, actions = oracle_of(NUM_ENVS), actions_for(NUM_ENVS)
    with gated(transport, gate) as envs, ThreadPoolExecutor(1) as other:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        stepped = other.submit(envs.step, actions)
        assert eventually(gate.sign.exists)
        assert_others_are_refused(envs)
        gate.path.touch()
        assert_same(stepped.result(20.0), oracle.step(actions))
        assert_same(envs.step(actions), oracle.step(actions))


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_a_second_thread_is_refused_while_one_waits_for_a_partial_batch(transport, gate):
    with gated(transport, gate) as envs, ThreadPoolExecutor(1) as other:
        envs.async_reset(seed=1)
        _, _, _, _, infos = envs.recv()
        envs.send(actions_for(NUM_ENVS), infos["env_id"])
        received = other.submit(envs.recv)
        assert eventually(gate.sign.exists)
        assert eventually(lambda: not inside.may_be_called(envs))
        assert_others_are_refused(envs)
        gate.path.touch()
        assert received.result(20.0)[4]["env_id"].tolist() == [0, 1, 2]


def test_threads_may_take_turns():
    oracle = oracle_of(NUM_ENVS)
    with cluster(walks(NUM_ENVS)) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        for number in range(6):
            actions = actions_for(NUM_ENVS, number)
            with ThreadPoolExecutor(1) as other:
                assert_same(other.submit(envs.step, actions).result(20.0), oracle.step(actions))


def test_a_call_that_fails_leaves_the_envs_to_other_threads():
    with cluster(walks(NUM_ENVS)) as envs, ThreadPoolExecutor(1) as other:
        for use in (envs.step_wait, envs.recv, partial(envs.step, None)):
            with pytest.raises(Exception):
                other.submit(use).result(20.0)
        envs.reset(seed=1)


def test_envs_can_be_closed_in_another_thread():
    envs = cluster(walks(NUM_ENVS))
    envs.reset()
    within(20.0, envs.close)
    assert envs.closed
