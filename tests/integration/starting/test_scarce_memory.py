"""A full /dev/shm does not matter; memory that cannot be had is an error that says how much."""

import os
import re
import shutil
import subprocess

import pytest

from tests.integration.heads import HeadScript
from tests.integration.polling import eventually

MAY_MOUNT = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
)
FULL_SHM = [
    "unshare",
    "-m",
    "sh",
    "-c",
    "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full "
    '&& exec "$@"',
    "sh",
]
RUN = """
oracle = SyncVectorEnv([{env}] * 4)
envs = ClusterEnv([{env}] * 4, num_workers=2)
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 6)
envs.close()
say("all the same")
"""
HEAVY = "partial(Heavy, 10)"  # 4 MB of observations
LIMIT = """
import resource

def limit(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

"""
WANTED = re.compile(r"(\d+) bytes of shared memory wanted")


def errors_of(folder, source):
    """What a head that must fail wrote to its standard error; nothing of it is left."""
    with HeadScript(folder, LIMIT + source) as head:
        assert head.wait() == 1, head.report()
        assert eventually(lambda: head.others() == [])
        assert head.files() == []
        return head.errors


def wanted_in(errors):
    """How many bytes the error says there were not."""
    (wanted,) = set(WANTED.findall(errors))
    return int(wanted)


@pytest.mark.skipif(not MAY_MOUNT, reason="NOT TESTED: a full /dev/shm needs root and unshare")
@pytest.mark.parametrize("env", ["Walk", HEAVY])
def test_a_full_dev_shm_does_not_matter(env, tmp_path):
    with HeadScript(tmp_path, RUN.format(env=env), FULL_SHM) as head:
        assert head.wait() == 0, head.report()
        assert "all the same" in head.output
        assert head.errors == ""


def test_without_memory_for_the_rows_the_error_says_how_much_they_need(tmp_path):
    source = f"limit(2 << 20)\nClusterEnv([{HEAVY}] * 4, num_workers=2)"
    errors = errors_of(tmp_path, source)
    assert "OSError" in errors
    assert wanted_in(errors) > 4 << 20


def test_without_memory_for_messages_the_error_says_so(tmp_path):
    errors = errors_of(tmp_path, "limit(64 << 10)\nClusterEnv([Walk] * 4, num_workers=2)")
    assert "OSError" in errors
    assert wanted_in(errors) > 64 << 10


def test_a_worker_that_there_is_no_memory_to_replace_is_an_error_that_says_both(tmp_path):
    source = """
envs = ClusterEnv([Walk] * 4, num_workers=2)
envs.reset(seed=1)
pid = envs.call("pid")[3]
limit(64 << 10)
os.kill(pid, signal.SIGKILL)
envs.step(np.zeros((4, 2)))
"""
    errors = errors_of(tmp_path, source)
    assert "WorkerLostError: worker-1.0" in errors
    assert "SIGKILL" in errors
    assert "cannot be replaced" in errors
    assert wanted_in(errors) > 64 << 10


WEIGHTS = """
from clusterenv import NumpyPolicy
from clusterenv.distributions import DiagonalGaussian

def zeros(weights, observations):
    return DiagonalGaussian(np.zeros((len(observations), 2)), np.zeros((len(observations), 2)))

def policy(size):
    return NumpyPolicy(zeros, {"table": np.zeros(size)})

envs = ClusterEnv([Walk] * 4, num_workers=2)
limit(2 << 20)
try:
    envs.rollout(policy(1 << 20), 3)
except OSError as error:
    say(error)
say("then", envs.rollout(policy(100), 3).rewards.shape)
"""


def test_without_memory_for_weights_the_error_says_so_and_smaller_ones_work(tmp_path):
    with HeadScript(tmp_path, LIMIT + WEIGHTS) as head:
        assert head.wait() == 0, head.report()
        # There is room for the version that acts and for the next.
        assert wanted_in(head.output) >= 2 * 8 << 20
        assert "then (3, 4)" in head.output


OPTIONS = """
envs = ClusterEnv([Walk] * 4, num_workers=2)
oracle = SyncVectorEnv([Walk] * 4)
limit(2 << 20)
try:
    envs.reset(seed=1, options={"map": bytes(3 << 20)})
except OSError as error:
    say(error)
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 3)
say("then all the same")
"""


def test_without_memory_for_options_the_error_says_so_and_the_run_goes_on(tmp_path):
    with HeadScript(tmp_path, LIMIT + OPTIONS) as head:
        assert head.wait() == 0, head.report()
        assert wanted_in(head.output) > 3 << 20
        assert "then all the same" in head.output
