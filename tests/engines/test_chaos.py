"""Hosts and workers are killed, and PPO keeps learning: the short form of `make chaos`."""

import importlib

import pytest

from tests.engines.harness.runs import ROOT


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("slurm_commands")
def test_ppo_learns_while_hosts_and_workers_are_killed(slurm, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    chaos = importlib.import_module("chaos")
    books = chaos.run_on(slurm, seconds=20.0, kill_every_s=4.0, gain=1.5)
    assert books.kills >= 3
    assert books.restarts > 0
    # Random actions reach 22.
    assert books.last_return > 1.5 * books.first_return
