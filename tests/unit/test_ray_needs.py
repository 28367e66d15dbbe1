"""What workers need of a Ray cluster."""

import pytest

from clusterenv.launchers.ray_needs import Needs, in_one_line


def needs(**changed):
    settings = {"num_cpus": 1, "num_gpus": 0, "memory": 0, "resources": {}, "strategy": "SPREAD"}
    return Needs(**{**settings, "runtime_env": None, **changed})


def test_only_what_is_needed_is_asked_for():
    some = needs(num_cpus=0.5, memory=1_000, resources={"simulator": 1})
    assert some.bundle == {"CPU": 0.5, "memory": 1_000.0, "simulator": 1.0}
    assert some.options["memory"] == 1_000
    assert needs().options["memory"] is None


@pytest.mark.parametrize("none", [{"num_cpus": 0}, {"num_gpus": -1}, {"resources": {"x": -1}}])
def test_a_worker_needs_something(none):
    with pytest.raises(ValueError, match=r"a worker cannot need .*; num_cpus=0\.01"):
        needs(**none)


def test_strategies_are_those_of_ray():
    with pytest.raises(ValueError, match="strategy='spread' must be one of SPREAD, STRICT_SPREAD"):
        needs(strategy="spread")


def test_a_shortage_is_told_with_what_there_is():
    nodes = [
        {"NodeManagerHostname": f"n{i}", "Resources": {"CPU": 2.0, "memory": 9}} for i in (1, 2)
    ]
    assert needs(num_gpus=0.5).shortage(3, nodes, {"CPU": 1.5}) == (
        "asked for 3 workers with 1 CPU, 0.5 GPU each, strategy SPREAD; the cluster has 2 nodes "
        "(n1: 2 CPU, 0 GPU; n2: 2 CPU, 0 GPU), and of all that 1.5 CPU, 0 GPU free; see: ray status"
    )
    assert "n1: 2 CPU; …)" in needs().shortage(3, nodes[:1] * 9, {})


def test_words_of_ray_are_kept_short():
    assert in_one_line(ValueError("a\n  b\tc")) == "a b c"
    assert len(in_one_line(ValueError("x" * 9_000))) < 1_000
