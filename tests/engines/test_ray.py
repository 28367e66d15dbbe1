"""Hosts on a Ray cluster with several nodes."""

import time

import pytest

pytest.importorskip("ray")

import ray

from clusterenv import ClusterEnv, Limits, RayLauncher, StartupError, WorkerLostError
from tests.engines import parity
from tests.engines.checked_runs import Replay, gone, hosts_on
from tests.environments.vectors import actions_for
from tests.environments.walks import Placed
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, kill

NUM_ENVS = 6
SLACK_S = 5.0
# From a killed process to Ray's word on it, and a busy machine.
NOTICE_S = 30.0


@pytest.fixture
def cluster(ray_cluster):
    """Open walks on three hosts that fill the cluster; closed at the end."""
    opened = []

    def make(launcher=None, **kwargs):
        launcher = launcher or RayLauncher(nodes=3, cpus_per_node=ray_cluster.cpus)
        opened.append(ClusterEnv([Placed] * NUM_ENVS, launcher=launcher, **kwargs))
        return opened[-1]

    yield make
    for envs in opened:
        envs.close(terminate=True)


def slots_on(envs, node):
    return [slot for slot, host in enumerate(envs.call("host")) if host == node]


def actor_on(host):
    (pid,) = host.processes("ray::HostActor")
    return pid


def assert_nothing_left(ray_cluster):
    """Fail unless the cluster is as it was: no host, no actor, all resources free."""
    hosts = [ray_cluster[node] for node in ray_cluster.nodes]
    assert gone(hosts, SLACK_S)
    assert eventually(lambda: not any(h.processes("ray::HostActor") for h in hosts), SLACK_S)
    assert not ray.is_initialized()
    with ray.init(log_to_driver=False, logging_level="WARNING"):
        total = ray.cluster_resources()["CPU"]
        assert eventually(lambda: ray.available_resources().get("CPU") == total, NOTICE_S)
        groups = ray.util.placement_group_table().values()
        assert {group["state"] for group in groups} <= {"REMOVED"}


@pytest.mark.parametrize("case", parity.CASES)
def test_the_numbers_are_those_of_sync_vector_env(case, ray_cluster):
    parity.assert_parity(lambda: RayLauncher(nodes=2, cpus_per_node=2), case)


@pytest.mark.parametrize(("spread", "nodes"), [(True, 2), (False, 1)])
def test_hosts_are_spread_unless_told_and_nothing_of_them_is_left(
    cluster, ray_cluster, spread, nodes
):
    with cluster(RayLauncher(nodes=2, cpus_per_node=1, spread=spread)) as envs:
        assert len(set(envs.call("host"))) == nodes
        assert len(set(envs.call("pid"))) == 2
    assert_nothing_left(ray_cluster)


def test_a_worker_that_is_killed_is_replaced_by_its_host(cluster, ray_cluster):
    with cluster() as envs:
        replay = Replay(envs)
        slot = slots_on(envs, "r2")[0]
        hosts = hosts_on(ray_cluster["r2"])
        kill(envs.call("pid")[slot])
        replay.rollout_until(lambda: slot in replay.restarted)
        assert hosts_on(ray_cluster["r2"]) == hosts
        assert set(replay.restarted) <= set(slots_on(envs, "r2"))


def test_lost_actors_and_hosts_are_replaced_in_their_places_and_no_row_is_wrong(
    cluster, ray_cluster
):
    with cluster() as envs:
        replay = Replay(envs)
        replay.rollout()
        with_actor, with_host = slots_on(envs, "r2"), slots_on(envs, "r3")
        kill(actor_on(ray_cluster["r2"]))
        replay.rollout_until(lambda: replay.restarted == with_actor)
        kill(hosts_on(ray_cluster["r3"])[0])
        replay.rollout_until(lambda: replay.restarted == sorted(with_actor + with_host))
        # There is no room elsewhere.
        assert slots_on(envs, "r2") == with_actor
        assert slots_on(envs, "r3") == with_host


def test_the_end_of_a_host_is_told_with_its_node(cluster, ray_cluster):
    with cluster(limits=Limits(max_restarts_per_minute=0)) as envs:
        envs.reset(seed=0)
        kill(hosts_on(ray_cluster["r2"])[0])
        with pytest.raises(WorkerLostError, match=r"killed by SIGKILL.* on Ray node r2"):
            for _ in range(1000):
                envs.step(actions_for(NUM_ENVS))


def test_the_host_of_a_dead_node_goes_elsewhere_and_no_row_is_wrong(cluster, ray_cluster):
    with cluster(RayLauncher(nodes=2)) as envs:
        replay = Replay(envs)
        replay.rollout()
        *_, victim = envs.call("host")
        lost = slots_on(envs, victim)
        ray_cluster.kill_node(victim)
        replay.rollout_until(lambda: replay.restarted == lost)
        assert victim not in envs.call("host")
        assert len(set(envs.call("host"))) == 2
        replay.rollout()


def test_a_placement_that_cannot_be_had_says_what_was_asked_for_and_what_there_is(
    cluster, ray_cluster
):
    launcher = RayLauncher(nodes=4, placement_timeout_s=1.0)
    start = time.monotonic()
    with pytest.raises(StartupError) as caught:
        cluster(launcher)
    assert time.monotonic() - start < 1.0 + SLACK_S
    for words in (
        "no room on Ray within placement_timeout_s=1: asked for 4 hosts with 1 CPU each",
        "each on a node of its own; the cluster has 4 nodes",
        "r2: 2 CPU",
    ):
        assert words in str(caught.value)
    assert_nothing_left(ray_cluster)


def test_a_connection_that_the_script_made_is_used_and_kept(cluster, ray_cluster):
    with ray.init(log_to_driver=False, logging_level="WARNING"):
        with cluster(RayLauncher("no such host")) as envs:
            envs.reset(seed=0)
        assert ray.is_initialized()


HEAD = """
from clusterenv import RayLauncher
from tests.environments.walks import Placed
envs = ClusterEnv([Placed] * 6, launcher=RayLauncher({address!r}, nodes=3))
envs.reset(seed=0)
envs.step(np.zeros((6, 2)))
say(*envs.call("host"))
"""


IN_STEP = """
from clusterenv import RayLauncher
busy = partial(Troubled, troubles.hold_the_gil, at=2, sign=SIGN)
envs = ClusterEnv([Walk, Walk, busy], launcher=RayLauncher(nodes=3))
envs.reset(seed=0)
envs.step(np.zeros((3, 2)))
envs.step(np.zeros((3, 2)))
"""


def test_nothing_is_left_when_the_head_is_killed_while_an_env_holds_the_gil(ray_cluster, tmp_path):
    with HeadScript(tmp_path, IN_STEP) as head:
        head.wait_for_sign()
        kill(head.process.pid)
        assert_nothing_left(ray_cluster)


# Ray gives its own server up too early on a busy machine; what it prints then.
RAY_GAVE_UP = "Starting Ray client server failed"


def hosts_seen_by(head_of, attempts=3):
    """The nodes that the script of `head_of(attempt)` found, unless Ray itself gave up thrice."""
    for attempt in range(attempts):
        with head_of(attempt) as head:
            code, report = head.wait(), head.report()
            if RAY_GAVE_UP not in report:
                assert code == 0, report
                return set(head.output.split())
    pytest.fail(report)


def test_the_head_may_be_on_any_node_of_the_cluster(ray_cluster, tmp_path):
    # Also on one that failed before and came back.
    ray_cluster.kill_node("r1")
    ray_cluster.reset()
    with HeadScript(tmp_path, HEAD.format(address="auto"), ray_cluster["r1"].command([])) as head:
        assert head.wait() == 0, head.report()
        # Ray may have a word to say about the end of the old node.
        assert set(head.output.split()) >= {"r1", "r2", "r3"}


def test_the_head_may_be_outside_the_cluster(ray_cluster, tmp_path):
    outside = ray_cluster.outside.command([])
    source = HEAD.format(address=ray_cluster.client_address) + "envs.close()"
    seen = hosts_seen_by(lambda k: HeadScript(folder(tmp_path, k), source, outside))
    assert seen == {"r1", "r2", "r3"}


def folder(path, attempt):
    path = path / str(attempt)
    path.mkdir()
    return path
