"""What the head does and says when a host is lost, on paper."""

import contextlib
import logging
from types import SimpleNamespace

import pytest

from clusterenv.errors import StartupError
from clusterenv.head.loss_reports import LossReports
from clusterenv.head.remote import RemoteFleet
from clusterenv.head.remote_host import HostState, RemoteHost
from clusterenv.head.remote_start import RemoteStart
from clusterenv.host.plan import WorkerLimits
from clusterenv.sync.ledger import Ledger

REASON = "not ready within restart_timeout_s=7"


class Driver(contextlib.nullcontext):
    """Nobody listens."""


def two_hosts(max_restarts):
    """One that is ready, and one that builds its envs."""
    here, late = (RemoteHost(index, Driver(), 0.0) for index in range(2))
    here.state, late.state = HostState.READY, HostState.BUILDING
    here.slots, late.slots = range(2), range(2, 4)
    return SimpleNamespace(
        all=[here, late],
        driver=Driver(),
        limits=WorkerLimits(9.0, 9.0, 7.0, 3, max_restarts),
        whereabouts=lambda host: host.name,
        log_tail=lambda host: "",
        dismiss=lambda host: host.become(HostState.LOST),
    )


def a_fleet(hosts):
    fleet = RemoteFleet.__new__(RemoteFleet)
    fleet._hosts, fleet._start = hosts, SimpleNamespace(min_hosts=1)
    return fleet


def test_a_late_host_without_restarts_notes_its_loss_once():
    hosts = two_hosts(max_restarts=0)
    late = hosts.all[1]
    lost = a_fleet(hosts)._lose(late, REASON, is_absent=True)
    assert f"its losses: 1 times {REASON})" in lost.error
    assert late.state is HostState.LOST


def test_a_late_host_with_restarts_may_still_come():
    hosts = two_hosts(max_restarts=1)
    late = hosts.all[1]
    lost = a_fleet(hosts)._lose(late, REASON, is_absent=True)
    assert "its losses" not in lost.error
    assert (late.state, late.restarts.num_spent) == (HostState.LATE, 1)


@pytest.mark.parametrize("min_hosts", [1, 2])
def test_what_a_host_says_at_the_start_cannot_command_a_terminal(min_hosts, caplog):
    start = RemoteStart.__new__(RemoteStart)
    start.hosts, start.min_hosts = two_hosts(max_restarts=1), min_hosts
    start._reports = LossReports(Ledger(), lambda: 0.0)
    end = pytest.raises(StartupError) if min_hosts == 2 else contextlib.nullcontext()
    with caplog.at_level(logging.WARNING, "clusterenv"), end as caught:
        start._lose(start.hosts.all[1], "it is\x1b]0;gone\x07\nThe end of its log:\n\x1b[2Jbye")
    told = caplog.text if caught is None else str(caught.value)
    assert "it is?]0;gone?" in told
    assert "?[2Jbye" in told
    assert "\x1b" not in told
    assert ("starting without it" in told) == (min_hosts == 1)
