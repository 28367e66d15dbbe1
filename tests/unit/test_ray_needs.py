"""What hosts need of a Ray cluster."""

import pytest

from clusterenv.launchers.ray import RayLauncher
from clusterenv.launchers.ray.needs import Needs, in_one_line


def needs(**changed):
    settings = {"cpus": 4, "gpus": 0, "memory": 0, "resources": {}, "spread": True}
    return Needs(**{**settings, "runtime_env": None, **changed})


def test_only_what_is_needed_is_asked_for():
    some = needs(cpus=0.5, memory=1_000, resources={"simulator": 1})
    assert some.bundle == {"CPU": 0.5, "memory": 1_000.0, "simulator": 1.0}
    assert some.options["memory"] == 1_000
    assert needs().options["memory"] is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cpus_per_node": 0}, "cpus_per_node=0: a host runs one worker per CPU"),
        ({"gpus_per_node": -1}, "gpus_per_node=-1 must not be negative"),
        ({"resources": {"x": -1}}, "x=-1 must not be negative"),
        ({"nodes": 0}, "nodes=0 must be at least 1"),
    ],
)
def test_a_host_cannot_need_nothing(wrong, words):
    with pytest.raises(ValueError, match=words):
        RayLauncher(**wrong)


@pytest.mark.parametrize(("spread", "strategy"), [(True, "STRICT_SPREAD"), (False, "PACK")])
def test_hosts_have_nodes_of_their_own_or_as_few_as_there_may_be(spread, strategy):
    assert needs(spread=spread).strategy == strategy


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (16, 16), (0.5, 1), (2.5, 2)])
def test_a_host_has_a_worker_per_cpu(cpus, workers):
    launcher = RayLauncher(nodes=3, cpus_per_node=cpus)
    assert (launcher.num_hosts, launcher.workers_per_host) == (3, workers)


def test_a_shortage_is_told_with_what_there_is():
    nodes = [
        {"NodeManagerHostname": f"n{i}", "Resources": {"CPU": 2.0, "memory": 9}} for i in (1, 2)
    ]
    assert needs(gpus=0.5).shortage(3, nodes, {"CPU": 1.5}) == (
        "asked for 3 hosts with 4 CPU, 0.5 GPU each, each on a node of its own; the cluster has 2 "
        "nodes (n1: 2 CPU, 0 GPU; n2: 2 CPU, 0 GPU), and of all that 1.5 CPU, 0 GPU free; see: ray "
        "status"
    )
    assert "of its own" not in needs(spread=False).shortage(3, nodes, {})
    assert "n1: 2 CPU; …)" in needs().shortage(3, nodes[:1] * 9, {})


def test_words_of_ray_are_kept_short():
    assert in_one_line(ValueError("a\n  b\tc")) == "a b c"
    assert len(in_one_line(ValueError("x" * 9_000))) < 1_000
