"""A head killed with -9, whatever its workers are doing: within the lease nothing is left."""

import os
import signal

import pytest

from tests.integration.heads import HeadScript
from tests.integration.polling import eventually

LEASE_S = 3.0
# Two ticks of the worker's lifeline and a busy machine.
WITHIN_S = LEASE_S + 7.0

IDLE = """
limits = Limits(lease_s=3.0)
envs = ClusterEnv([Walk] * 4, num_workers=2, limits=limits, shared_memory={shared_memory})
envs.reset(seed=0)
open(SIGN, "w").close()
time.sleep(600)
"""
IN_VERB = """
busy = partial(Troubled, troubles.{trouble}, "{verb}", sign=SIGN)
limits = Limits(lease_s=3.0)
envs = ClusterEnv([Walk, busy], num_workers=2, limits=limits, shared_memory={shared_memory})
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
"""
WITH_CHILD = """
parent = partial(Troubled, troubles.start_child, "step", at=1)
envs = ClusterEnv([Walk, parent], num_workers=2, limits=Limits(lease_s=3.0))
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
open(SIGN, "w").close()
time.sleep(600)
"""
WITH_STRAY = """
parent = partial(Troubled, troubles.{trouble}, "step", at=1)
limits = Limits(lease_s=3.0)
envs = ClusterEnv([Walk, parent], num_workers=2, limits=limits, shared_memory={shared_memory})
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
open(SIGN, "w").close()
time.sleep(600)
"""
WITH_FORK = """
envs = ClusterEnv([Walk] * 4, num_workers=2, limits=Limits(lease_s=3.0))
envs.reset(seed=0)
if os.fork() == 0:
    open(SIGN, "w").close()
    time.sleep(600)
time.sleep(600)
"""


WITH_FORK_AND_GIL = """
gil = partial(Troubled, troubles.hold_the_gil, sign=SIGN)
limits = Limits(lease_s=3.0)
envs = ClusterEnv([Walk, gil], num_workers=2, limits=limits, shared_memory={shared_memory})
envs.reset(seed=0)
if os.fork() == 0:
    time.sleep(600)
envs.step(np.zeros((2, 2)))
"""


def in_verb(trouble, verb="step", shared_memory=True):
    return IN_VERB.format(trouble=trouble, verb=verb, shared_memory=shared_memory)


SCRIPTS = {
    "idle": IDLE.format(shared_memory=True),
    "idle over tcp": IDLE.format(shared_memory=False),
    "in a long step": in_verb("sleep_forever"),
    "in a long step over tcp": in_verb("sleep_forever", shared_memory=False),
    "in a long reset": in_verb("sleep_forever", "reset"),
    "building envs": in_verb("sleep_forever", "make"),
    "holding the GIL": in_verb("hold_the_gil"),
    "holding the GIL while building": in_verb("hold_the_gil", "make"),
}


def kill_when_ready(head, with_signal=signal.SIGKILL):
    head.wait_for_sign()
    assert eventually(lambda: len(head.others()) >= 2)
    os.kill(head.process.pid, with_signal)
    head.wait()


@pytest.mark.parametrize("doing", SCRIPTS)
def test_workers_end_when_their_head_is_killed_while_they_are(doing, tmp_path):
    with HeadScript(tmp_path, SCRIPTS[doing]) as head:
        kill_when_ready(head)
        assert eventually(lambda: head.others() == [], WITHIN_S), f"left: {head.others()}"


def test_workers_end_when_their_head_gets_sigterm(tmp_path):
    with HeadScript(tmp_path, SCRIPTS["idle"]) as head:
        kill_when_ready(head, signal.SIGTERM)
        assert eventually(lambda: head.others() == [], WITHIN_S), f"left: {head.others()}"


def test_workers_end_though_a_forked_child_of_the_head_lives_on(tmp_path):
    with HeadScript(tmp_path, WITH_FORK) as head:
        kill_when_ready(head)
        assert eventually(lambda: len(head.others()) == 1, WITHIN_S), f"left: {head.others()}"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_workers_that_hold_the_gil_end_though_a_forked_child_lives_on(shared_memory, tmp_path):
    source = WITH_FORK_AND_GIL.format(shared_memory=shared_memory)
    with HeadScript(tmp_path, source) as head:
        kill_when_ready(head)
        assert eventually(lambda: len(head.others()) == 1, WITHIN_S), f"left: {head.others()}"


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("trouble", ["start_child_elsewhere", "start_daemon"])
def test_processes_in_sessions_of_their_own_end_with_a_killed_head(
    trouble, shared_memory, tmp_path
):
    source = WITH_STRAY.format(trouble=trouble, shared_memory=shared_memory)
    with HeadScript(tmp_path, source) as head:
        head.wait_for_sign()
        # Workers, what one of them has started, and a guardian; and the host, where it is one.
        assert eventually(lambda: len(head.others()) == (4 if shared_memory else 5))
        kill_when_ready(head)
        assert eventually(lambda: head.others() == [], WITHIN_S), f"left: {head.others()}"


def test_processes_that_an_env_started_end_with_a_killed_head(tmp_path):
    with HeadScript(tmp_path, WITH_CHILD) as head:
        head.wait_for_sign()
        assert eventually(lambda: len(head.others()) == 3)
        kill_when_ready(head)
        assert eventually(lambda: head.others() == [], WITHIN_S), f"left: {head.others()}"


def test_a_killed_head_leaves_no_files(tmp_path):
    with HeadScript(tmp_path, SCRIPTS["idle"]) as head:
        kill_when_ready(head)
        assert eventually(lambda: head.others() == [], WITHIN_S)
        assert eventually(lambda: head.files() == [], 2.0), f"left: {head.files()}"
