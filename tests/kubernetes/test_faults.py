"""Faults of pods and heads: the run goes on, the Job does not fail, and nothing is left."""

import os
import signal

import pytest

from clusterenv import ClusterEnv, Limits, WorkerLostError
from clusterenv.launchers.kubernetes.api import KubernetesApi
from tests.engines.checked_runs import Replay
from tests.environments.vectors import actions_for
from tests.environments.walks import Placed
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, kill

LEASE_S = 6.0
pytestmark = [pytest.mark.usefixtures("kubelet"), pytest.mark.timeout(300)]


@pytest.fixture
def replay(namespace):
    launcher = namespace.launcher()
    with ClusterEnv(Placed, 4, launcher=launcher, limits=Limits(lease_s=LEASE_S)) as envs:
        replay = Replay(envs)
        replay.rollout()
        yield replay
    assert eventually(namespace.is_empty, 60.0)


def hosts(replay):
    return replay.envs.call("host")


def test_a_host_that_was_killed_is_replaced_by_the_job(replay, kubelet, namespace):
    *_, victim = hosts(replay)
    kill(kubelet.process_of(victim))
    replay.rollout_until(lambda: replay.restarted == [2, 3], 120.0)
    assert victim not in hosts(replay)
    assert len(namespace.get("jobs")) == 1


def test_a_worker_that_was_killed_is_replaced_in_its_pod(replay, kubelet):
    before = hosts(replay)
    kill(kubelet.child_of(before[-1]))
    replay.rollout_until(lambda: replay.restarted, 120.0)
    assert set(replay.restarted) <= {2, 3}
    assert hosts(replay) == before


def test_a_pod_that_is_deleted_hands_its_slots_back(replay, namespace):
    *_, victim = hosts(replay)
    namespace.kubectl("delete", "pod", victim, "--wait=false")
    replay.rollout_until(lambda: replay.restarted == [2, 3], 120.0)
    assert victim not in hosts(replay)


def test_a_host_that_leaves_and_so_ends_well_is_replaced_by_another_job(
    replay, kubelet, namespace, monkeypatch
):
    # As if it had always ended before that.
    monkeypatch.setattr(KubernetesApi, "delete_pod", lambda *_: None)
    *_, victim = hosts(replay)
    os.kill(kubelet.process_of(victim), signal.SIGTERM)
    replay.rollout_until(lambda: replay.restarted == [2, 3], 120.0)
    assert victim not in hosts(replay)
    assert eventually(lambda: len(kubelet.running) == 2)
    jobs = namespace.get("jobs")
    assert sorted(job["spec"]["completions"] for job in jobs) == [1, 2]
    assert not [job for job in jobs if job["status"].get("failed")]


def test_a_pod_whose_host_is_stuck_is_deleted_and_replaced(replay, kubelet, namespace):
    *_, victim = hosts(replay)
    os.kill(kubelet.process_of(victim), signal.SIGSTOP)
    replay.rollout_until(lambda: replay.restarted == [2, 3], 120.0)
    assert eventually(lambda: victim not in kubelet.running, 60.0)
    assert eventually(lambda: len(kubelet.running) == 2, 60.0)


def test_how_a_pod_ended_is_told(namespace, kubelet):
    launcher = namespace.launcher()
    limits = Limits(max_restarts_per_minute=0)
    with ClusterEnv(Placed, 4, launcher=launcher, limits=limits) as envs:
        envs.reset(seed=0)
        *_, victim = envs.call("host")
        kubelet.oom.add(victim)
        kill(kubelet.process_of(victim))
        with pytest.raises(WorkerLostError, match=rf"pod {victim} on node .* ended: OOMKilled"):
            for _ in range(100):
                envs.step(actions_for(4))
    assert eventually(namespace.is_empty, 60.0)


HEAD = """
from clusterenv import KubernetesLauncher, Limits
place = dict(namespace={namespace!r}, kubeconfig={kubeconfig!r})
launcher = KubernetesLauncher("host", hosts=2, cpus_per_host=0.1, **place)
envs = ClusterEnv(Walk, 4, launcher=launcher, limits=Limits(lease_s=4.0))
envs.reset(seed=0)
say("ready")
time.sleep(600)
"""


def test_the_hosts_of_a_killed_head_end_well_and_the_cluster_removes_the_rest(
    namespace, plane, tmp_path
):
    source = HEAD.format(namespace=namespace.name, kubeconfig=str(plane.kubeconfig))
    with HeadScript(tmp_path, source) as head:
        head.wait_for("ready")
        kill(head.process.pid)
    jobs = lambda: [job["status"] for job in namespace.get("jobs")]  # noqa: E731
    assert eventually(lambda: [job.get("succeeded") for job in jobs()] == [2], 60.0)
    assert not jobs()[0].get("failed")
    assert eventually(namespace.is_empty, 150.0)
