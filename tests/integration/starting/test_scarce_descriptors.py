"""Too few descriptors are an error with numbers; a soft limit is raised where that is allowed."""

import re

import pytest

from tests.environments.vectors import SHARED_MEMORY
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually

LIMIT = """
import resource

def limit(room, hard=True):
    soft = len(os.listdir("/proc/self/fd")) - 1 + room
    most = soft if hard else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))

"""
START = """
limit({room}, hard={hard})
envs = ClusterEnv([Walk] * 4, num_workers=2, {launcher})
oracle = SyncVectorEnv([Walk] * 4)
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 3)
envs.close()
say("all the same")
"""
REPLACE = """
from tests.inside import host_pid
envs = ClusterEnv([Walk] * 4, num_workers=2, shared_memory={shared_memory})
envs.reset(seed=1)
pid = envs.call("pid")[3] if {shared_memory} else host_pid(envs, "host-0.0")
limit({room}, hard={hard})
os.kill(pid, signal.SIGKILL)
for _ in range(50):
    if envs.step(np.zeros((4, 2)))[-1].get("env_lost") is not None:
        say("replaced")
        break
    time.sleep(0.1)
envs.reset(seed=2)
envs.step(np.zeros((4, 2)))
envs.close()
say("went on")
"""
LAUNCHERS = {
    "shared_memory": "shared_memory=True",
    "tcp": "shared_memory=False",
    "in-process": "launcher='in-process'",
}
WANTED = re.compile(r"(\d+) more file descriptors are wanted for (\S+.*?), but \d+ of at most \d+")


def replacing(transport, room, hard):
    return REPLACE.format(shared_memory=SHARED_MEMORY[transport], room=room, hard=hard)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("room", [0, 1, 5, 12])
def test_too_few_descriptors_are_an_error_with_numbers(room, launcher, tmp_path):
    source = LIMIT + START.format(room=room, hard=True, launcher=LAUNCHERS[launcher])
    with HeadScript(tmp_path, source) as head:
        assert head.wait() == 1, head.report()
        assert "OSError" in head.errors
        assert WANTED.search(head.errors)
        assert eventually(lambda: head.others() == [])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_soft_limit_that_is_too_low_is_raised(launcher, tmp_path):
    source = LIMIT + START.format(room=3, hard=False, launcher=LAUNCHERS[launcher])
    with HeadScript(tmp_path, source) as head:
        assert head.wait() == 0, head.report()
        assert "all the same" in head.output


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_a_replacement_raises_the_soft_limit_too(transport, tmp_path):
    with HeadScript(tmp_path, LIMIT + replacing(transport, room=1, hard=False)) as head:
        assert head.wait() == 0, head.report()
        assert head.output.split("\n")[:2] == ["replaced", "went on"]


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_a_replacement_that_there_are_no_descriptors_for_is_an_error_that_says_both(
    transport, tmp_path
):
    with HeadScript(tmp_path, LIMIT + replacing(transport, room=1, hard=True)) as head:
        assert head.wait() == 1, head.report()
        assert "WorkerLostError" in head.errors
        assert "SIGKILL" in head.errors
        assert REFUSAL[transport] in head.errors
        assert WANTED.search(head.errors)
        assert eventually(lambda: head.others() == [])


# A host replaces its worker; the head starts another host in the place of one that was lost.
REFUSAL = {"shared_memory": "It cannot be replaced", "tcp": "it cannot be started"}

DO_WITHOUT = """
from clusterenv import LocalLauncher
from tests.inside import host_names, host_pid
envs = ClusterEnv([Walk] * 4, num_workers=2, launcher=LocalLauncher(hosts=2), min_hosts=1)
envs.reset(seed=1)
pid = host_pid(envs, "host-1.0")
limit(1)
os.kill(pid, signal.SIGKILL)
while host_names(envs) != ["host-0.0"]:
    envs.step(np.zeros((4, 2)))
envs.reset(seed=2)
envs.step(np.zeros((4, 2)))
envs.close()
say("went on")
"""


def test_a_host_that_there_are_no_descriptors_to_replace_is_done_without(tmp_path):
    with HeadScript(tmp_path, LIMIT + DO_WITHOUT) as head:
        assert head.wait() == 0, head.report()
        assert "went on" in head.output
        assert REFUSAL["tcp"] in head.errors
