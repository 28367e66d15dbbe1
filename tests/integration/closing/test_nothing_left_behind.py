"""However a run ends: no process, no file in /dev/shm, no temporary file stays."""

import contextlib
import gc
import os
import signal
import threading
import weakref
from functools import partial

import pytest

from clusterenv import ClusterEnv
from clusterenv.launchers.local import LocalLauncher
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, walks
from tests.environments.walks import Walk
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually

NUM_ENVS = 4
ACTIONS = actions_for(NUM_ENVS)


@pytest.fixture(params=SHARED_MEMORY)
def transport(request):
    return request.param


@pytest.fixture
def clean(watched, own_tmp):
    """Call it to assert that this test's runs have left nothing."""
    threads = set(threading.enumerate())

    def check():
        # What an env started gets its signal with the worker, but ends in its own time.
        assert eventually(lambda: watched.processes() == [])
        assert list(own_tmp.iterdir()) == []
        assert [name for name in os.listdir("/dev/shm") if "clusterenv" in name] == []
        assert set(threading.enumerate()) <= threads

    return check


def running(watched, transport="shared_memory", makers=None, **kwargs):
    """Envs that were reset and stepped."""
    kwargs = {"launcher": watched.launcher, **kwargs}
    envs = cluster(makers or walks(NUM_ENVS), transport, **kwargs)
    envs.reset(seed=0)
    envs.step(ACTIONS)
    assert len(watched.processes()) >= 2
    return envs


# Within this process.


@pytest.mark.parametrize("terminate", [False, True])
def test_close_leaves_nothing(terminate, transport, watched, clean):
    running(watched, transport).close(terminate=terminate)
    clean()


def test_an_exception_inside_a_with_block_leaves_nothing(transport, watched, clean):
    with pytest.raises(ZeroDivisionError), running(watched, transport) as envs:
        envs.step_async(ACTIONS)
        envs.step_wait()
        raise ZeroDivisionError
    clean()


def test_dropping_the_envs_without_close_leaves_nothing(transport, watched, clean):
    envs = running(watched, transport)
    del envs
    gc.collect()
    clean()


def test_dropping_envs_that_refer_to_themselves_leaves_nothing(watched, clean):
    envs = running(watched)
    envs.myself = envs
    del envs
    gc.collect()
    clean()


class CollectingLauncher(LocalLauncher):
    """Collects garbage in the thread that watches the hosts, as may happen any time."""

    def status(self):
        gc.collect()
        return super().status()


def test_dropped_envs_may_be_collected_by_a_thread_of_their_own(watched, clean):
    threads = threading.active_count()
    launcher = CollectingLauncher(hosts=1, environment=watched.environment)
    envs = running(watched, launcher=launcher)
    gc.disable()
    try:
        envs.myself = envs
        del envs
        assert eventually(lambda: watched.processes() == [])
        assert eventually(lambda: threading.active_count() == threads)
    finally:
        gc.enable()
    clean()


class Collector(Walk):
    """Collects garbage in its step, once there is a file."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def step(self, action):
        assert eventually(self.gate.exists)
        gc.collect()
        return super().step(action)


def test_dropped_envs_may_be_collected_by_a_worker_that_is_a_thread(tmp_path):
    threads, gate = threading.active_count(), tmp_path / "gate"
    envs = ClusterEnv(partial(Collector, gate), 2, 2, launcher="in-process")
    envs.reset(seed=0)
    envs.step_async(envs.action_space.sample())
    gc.disable()
    try:
        envs.myself, dropped = envs, weakref.ref(envs)
        del envs
        gate.touch()
        assert eventually(lambda: dropped() is None)
        assert eventually(lambda: threading.active_count() == threads)
    finally:
        gc.enable()


@pytest.mark.parametrize("terminate", [False, True])
def test_workers_that_are_threads_end_with_close(terminate):
    threads = threading.active_count()
    envs = ClusterEnv(Walk, 4, 2, launcher="in-process")
    envs.reset(seed=0)
    envs.close(terminate=terminate)
    assert threading.active_count() == threads


def raise_within(envs):
    with contextlib.suppress(ZeroDivisionError), envs:
        raise ZeroDivisionError


WAYS_TO_END = {
    "close": lambda envs: envs.close(),
    "terminate": lambda envs: envs.close(terminate=True),
    "an exception": raise_within,
    "no close": lambda envs: None,
}


def left_open():
    """The descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.parametrize("launcher", ["in-process", "local"])
@pytest.mark.parametrize("way", WAYS_TO_END)
def test_however_runs_end_they_leave_neither_threads_nor_descriptors(way, launcher):
    def run():
        envs = ClusterEnv(Walk, 4, 2, launcher=launcher)
        envs.reset(seed=0)
        envs.step(ACTIONS)
        WAYS_TO_END[way](envs)

    run()
    gc.collect()
    before = left_open()
    # Nothing may depend on when garbage is collected, if the user has closed the envs.
    gc.disable()
    try:
        for _ in range(3):
            run()
        if way == "no close":
            gc.collect()
        assert eventually(lambda: left_open() == before), left_open()
    finally:
        gc.enable()


def test_a_thread_that_cannot_end_yet_touches_nothing_that_is_opened_later(tmp_path):
    gate, later = tmp_path / "gate", tmp_path / "later"
    threads = threading.active_count()
    makers = walks(2, 1, trouble=troubles.Gate(str(gate)))
    envs = ClusterEnv(makers, num_workers=2, launcher="in-process")
    envs.reset(seed=0)
    envs.step_async(actions_for(2))
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(terminate=True)
    assert threading.active_count() > threads
    # In place of the descriptors that were closed.
    files = [later.open("wb") for _ in range(64)]
    gate.touch()
    assert eventually(lambda: threading.active_count() == threads)
    for file in files:
        file.close()
    assert later.read_bytes() == b""


@pytest.mark.parametrize("verb", ["make", "reset", "step"])
def test_an_exception_in_an_env_leaves_nothing(verb, watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.raise_value_error, verb=verb)
    with pytest.raises(ValueError, match="blocked"), running(watched, makers=makers):
        pass
    # The traceback holds the frames, and these the envs.
    gc.collect()
    clean()


def test_a_worker_that_died_leaves_nothing(watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.exit_3, at=2)
    with running(watched, makers=makers) as envs:
        assert envs.step(ACTIONS)[-1]["env_lost"].any()
        envs.step(ACTIONS)
    clean()


def test_a_failed_start_leaves_nothing(watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.exit_3, verb="make")
    with pytest.raises(RuntimeError):
        running(watched, makers=makers)
    gc.collect()
    clean()


@pytest.mark.parametrize("terminate", [False, True])
def test_close_ends_the_processes_that_an_env_started(terminate, watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.start_child, at=1)
    envs = running(watched, makers=makers)
    assert eventually(lambda: len(watched.processes()) == 3)
    envs.close(terminate=terminate)
    clean()


@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.parametrize("trouble", [troubles.start_child_elsewhere, troubles.start_daemon])
def test_close_ends_processes_in_sessions_of_their_own(
    trouble, terminate, transport, watched, clean
):
    makers = walks(NUM_ENVS, 2, trouble=trouble, at=1)
    envs = running(watched, transport, makers=makers)
    # Two workers and what one of them has started; and the host, where it is one.
    assert eventually(lambda: len(watched.processes()) >= (3 if transport == "tcp" else 4))
    envs.close(terminate=terminate)
    clean()


def test_what_a_lost_worker_has_started_ends_with_it(transport, watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.start_daemon, at=1)
    with running(watched, transport, makers=makers) as envs:
        before = set(watched.processes())
        os.kill(envs.call("pid")[2], signal.SIGKILL)
        assert eventually(lambda: envs.step(ACTIONS)[-1].get("env_lost", [False])[2])
        # Of those that were there, the worker and what it has started are gone.
        assert eventually(lambda: len(before - set(watched.processes())) >= 2)
    clean()


def test_an_env_that_becomes_a_daemon_is_replaced_and_leaves_nothing(
    transport, watched, clean, tmp_path
):
    once = troubles.OnlyOnce(str(tmp_path / "once"), troubles.become_daemon)
    makers = walks(NUM_ENVS, 2, trouble=once, at=2)
    with running(watched, transport, makers=makers) as envs:
        num_before = len(watched.processes())
        assert eventually(lambda: envs.step(ACTIONS) and envs.workers[1].incarnation == 1)
        assert eventually(lambda: len(watched.processes()) == num_before)
    clean()


def test_close_ends_a_worker_whose_env_left_a_thread(watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.leave_a_thread, at=1)
    running(watched, makers=makers).close()
    clean()


def test_close_ends_a_worker_whose_env_fails_to_close(watched, clean):
    makers = walks(NUM_ENVS, 2, trouble=troubles.raise_value_error, verb="close")
    running(watched, makers=makers).close()
    clean()


# At the end of a head process.

ENDINGS = {
    "the end of the script": ("pass", 0),
    "sys.exit": ("sys.exit(5)", 5),
    "an exception": ("raise ValueError('unhappy')", 1),
    "an exception while a step is under way": (
        "envs.step_async(np.zeros((4, 2))); raise ValueError('unhappy')",
        1,
    ),
}
STARTED = "envs = ClusterEnv([Walk] * 4, num_workers=2); envs.reset(seed=0); say('started')\n"


def assert_clean(head):
    assert eventually(lambda: head.others() == []), f"still running: {head.others()}"
    assert head.files() == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_head_that_ends_without_close_leaves_nothing(ending, tmp_path):
    code, expected = ENDINGS[ending]
    with HeadScript(tmp_path, STARTED + code) as head:
        assert head.wait() == expected, head.report()
        assert_clean(head)


@pytest.mark.parametrize("ending", ["the end of the script", "sys.exit"])
def test_a_head_that_ends_without_close_has_nothing_to_complain_about(ending, tmp_path):
    with HeadScript(tmp_path, STARTED + ENDINGS[ending][0]) as head:
        head.wait()
        assert head.errors == ""


def test_ctrl_c_during_a_step_leaves_nothing(tmp_path):
    source = """
        stuck = partial(Troubled, troubles.sleep_forever, sign=SIGN)
        envs = ClusterEnv([Walk, stuck], num_workers=2)
        envs.reset(seed=0)
        envs.step(np.zeros((2, 2)))
    """
    with HeadScript(tmp_path, source) as head:
        head.wait_for_sign()
        head.process.send_signal(signal.SIGINT)
        assert head.wait() == -signal.SIGINT, head.report()
        assert_clean(head)
        assert "KeyboardInterrupt" in head.errors


def test_ctrl_c_while_the_envs_are_made_leaves_nothing(tmp_path):
    source = """
        stuck = partial(Troubled, troubles.sleep_forever, "make", sign=SIGN)
        ClusterEnv([Walk, stuck], num_workers=2)
    """
    with HeadScript(tmp_path, source) as head:
        head.wait_for_sign()
        head.process.send_signal(signal.SIGINT)
        assert head.wait() == -signal.SIGINT, head.report()
        assert_clean(head)


def test_ctrl_c_reaches_the_head_only(tmp_path):
    source = """
        slow = partial(Troubled, Gate(SIGN + "-gate"), at=1, sign=SIGN)
        envs, oracle = ClusterEnv([Walk, slow], num_workers=2), SyncVectorEnv([Walk] * 2)
        envs.reset(seed=0)
        try:
            envs.step(np.zeros((2, 2)))
        except KeyboardInterrupt:
            open(SIGN + "-gate", "w").close()
            assert_same(envs.reset(seed=1), oracle.reset(seed=1))
            check(envs, oracle, 3)
            say("went on")
    """
    with HeadScript(tmp_path, source) as head:
        head.wait_for_sign()
        for pid in [head.process.pid, *head.others()]:
            os.kill(pid, signal.SIGINT)
        assert head.wait() == 0, head.report()
        assert "went on" in head.output
