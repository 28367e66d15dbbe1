"""A full /dev/shm, and shared memory that cannot be had: the run goes on."""

import os
import shutil
import subprocess

import pytest

from tests.integration.heads import HeadScript

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
{before}
envs = ClusterEnv([{env}] * 4, num_workers=2)
assert_same(envs.reset(seed=1), oracle.reset(seed=1))
check(envs, oracle, 6)
envs.close()
say("all the same")
"""
LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""
HEAVY = "partial(Heavy, 10)"  # 4 MB of observations


def run(folder, env="Walk", before="", prefix=()):
    """What a head that must succeed wrote to its standard error."""
    with HeadScript(folder, RUN.format(env=env, before=before), prefix) as head:
        assert head.wait() == 0, head.report()
        assert "all the same" in head.output
        return head.errors


@pytest.mark.skipif(not MAY_MOUNT, reason="NOT TESTED: a full /dev/shm needs root and unshare")
@pytest.mark.parametrize("env", ["Walk", HEAVY])
def test_a_full_dev_shm_does_not_matter(env, tmp_path):
    assert run(tmp_path, env, prefix=FULL_SHM) == ""


def test_rows_that_get_no_shared_memory_travel_over_tcp_after_a_warning(tmp_path):
    errors = run(tmp_path, HEAVY, LIMIT.format(limit=2 << 20))
    assert "Warning" in errors
    assert "shared memory" in errors


def test_a_machine_without_any_shared_memory_works_over_tcp_after_a_warning(tmp_path):
    errors = run(tmp_path, "Walk", LIMIT.format(limit=64 << 10))
    assert "Warning" in errors
    assert "shared memory" in errors


def test_replacements_work_without_shared_memory_too(tmp_path):
    source = """
        import resource, warnings
        envs = ClusterEnv([Walk] * 4, num_workers=2)
        envs.reset(seed=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        os.kill(envs.call("pid")[3], signal.SIGKILL)
        lost = envs.step(np.zeros((4, 2)))[-1]["env_lost"]
        again = envs.step(np.zeros((4, 2)))[-1]["_start"]
        say(lost.tolist(), again.tolist())
    """
    with HeadScript(tmp_path, source) as head:
        assert head.wait() == 0, head.report()
        assert "[False, False, True, True] [False, False, True, True]" in head.output
