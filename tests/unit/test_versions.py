"""Versions that cannot work together are told apart from those that can."""

import platform

import gymnasium
import numpy as np
import pytest

import clusterenv
from clusterenv.wire.versions import disagreements, versions

HEAD = {"python": "3.11.7", "numpy": "2.1.3", "gymnasium": "1.2.0", "clusterenv": "0.1.0"}


def test_the_versions_are_those_that_run_here():
    assert versions() == {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "clusterenv": clusterenv.__version__,
    }


def test_equal_versions_agree():
    assert disagreements(HEAD, dict(HEAD)) == []


@pytest.mark.parametrize(
    ("name", "version"),
    [("python", "3.11.0"), ("numpy", "2.0.0"), ("numpy", "2.4.6"), ("gymnasium", "1.2.9")],
)
def test_a_small_difference_is_no_disagreement(name, version):
    assert disagreements(HEAD, {**HEAD, name: version}) == []


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("python", "3.12.7"),
        ("python", "3.1.7"),
        ("numpy", "1.26.4"),
        ("gymnasium", "1.1.0"),
        ("gymnasium", "0.29.1"),
        ("clusterenv", "0.1.1"),
    ],
)
def test_a_difference_that_counts_is_said_with_both_versions(name, version):
    (text,) = disagreements(HEAD, {**HEAD, name: version})
    assert text == f"{name} {version} on the host, {HEAD[name]} on the head"


@pytest.mark.parametrize("name", HEAD)
def test_a_version_that_is_missing_is_a_disagreement(name):
    worker = {key: value for key, value in HEAD.items() if key != name}
    (text,) = disagreements(HEAD, worker)
    assert text.startswith(f"{name} missing on the host")


def test_what_only_the_worker_has_does_not_matter():
    assert disagreements(HEAD, {**HEAD, "torch": "2.4"}) == []
