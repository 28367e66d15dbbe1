"""All workers of a run have one hash seed, so that sets of strings are in one order on them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, InProcessLauncher, LocalLauncher, SshLauncher
from clusterenv.head.opening import choose_hash_seed
from clusterenv.status.channel import Run, fetch
from tests.environments.printing import Ordered
from tests.equality import assert_same
from tests.integration.heads import HeadScript

LAUNCHERS = {"shared memory": "local", "two hosts": LocalLauncher(hosts=2)}
SAME_AS_SYNC = """
from tests.environments.printing import Ordered
oracle = SyncVectorEnv([Ordered] * 4)
for shared_memory in (True, False):
    with ClusterEnv([Ordered] * 4, num_workers=2, shared_memory=shared_memory) as envs:
        assert envs.ledger.hash_seed == 7
        assert_same(envs.reset(seed=0), oracle.reset(seed=0))
        check(envs, oracle, 3)
say("the same")
"""


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_all_workers_meet_the_words_of_a_set_in_the_same_order(launcher):
    with ClusterEnv([Ordered] * 4, num_workers=4, launcher=launcher) as envs:
        orders, infos = envs.reset(seed=0)
        assert (orders == orders[0]).all()
        assert infos["hash_seed"].tolist() == [str(envs.ledger.hash_seed)] * 4
        assert fetch(Run(envs.run_id, os.getpid())).hash_seed == envs.ledger.hash_seed


def test_a_replacement_has_the_hash_seed_of_the_run():
    with ClusterEnv([Ordered] * 2, num_workers=2) as envs:
        before, _ = envs.reset(seed=0)
        os.kill(envs.workers[1].pid, 9)
        for _ in range(3):
            after, *_ = envs.step(np.zeros(2, np.int64))
        assert envs.workers[1].incarnation == 1
        assert_same(after, before)


def test_with_a_hash_seed_at_the_head_workers_are_the_same_as_sync_vector_env(tmp_path):
    with HeadScript(tmp_path, SAME_AS_SYNC, ["env", "PYTHONHASHSEED=7"]) as head:
        assert head.wait() == 0, head.report()
        assert "the same" in head.output


def test_a_hash_seed_in_the_environment_of_the_head_is_taken(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "11")
    with ClusterEnv([Ordered] * 2, num_workers=2) as envs:
        assert envs.ledger.hash_seed == 11
        assert envs.reset()[1]["hash_seed"].tolist() == ["11", "11"]


def test_a_run_without_one_gets_a_hash_seed_of_its_own():
    assert choose_hash_seed("0") == 0
    assert choose_hash_seed("4294967295") == 4294967295
    for none in ("", "random", "4294967296", "-1", "x"):
        drawn = {choose_hash_seed(none) for _ in range(10)}
        assert len(drawn) > 1
        assert all(0 < seed < 1 << 32 for seed in drawn)


def test_threads_of_the_head_hash_as_it_does():
    oracle = SyncVectorEnv([Ordered] * 2)
    with ClusterEnv([Ordered] * 2, launcher=InProcessLauncher()) as envs:
        assert envs.ledger.hash_seed is None
        assert_same(envs.reset(seed=0), oracle.reset(seed=0))


@pytest.mark.parametrize("launcher", [LocalLauncher, lambda **kw: SshLauncher(["a"], **kw)])
def test_a_hash_seed_for_the_workers_alone_is_refused(launcher):
    with pytest.raises(ValueError, match="export PYTHONHASHSEED=5"):
        launcher(environment={"PYTHONHASHSEED": "5"})


def test_the_seed_decides_the_order_in_python_itself():
    """Without this the tests above would show nothing."""

    def order(seed):
        script = "print(*set(f'word {n}' for n in range(50)))"
        env = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True).stdout

    assert order("1") == order("1") != order("2")
