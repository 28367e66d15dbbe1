"""Real engines for the tests, started once and handed out whole to each test."""

import pytest

from tests.engines.harness import Hosts, SlurmCluster, SshHosts, why_not_here


@pytest.fixture(scope="session")
def engines():
    """For all tests of real engines: skips them where there can be none."""
    if why_not_here():
        pytest.skip(why_not_here())


def pytest_terminal_summary(terminalreporter):
    if why_not_here():
        terminalreporter.section("ENGINE TESTS DID NOT RUN", red=True, bold=True)
        terminalreporter.write_line(why_not_here())


@pytest.fixture(scope="session")
def slurm_cluster(engines):
    """Four nodes, for fixtures that outlast a test; they put it right themselves with `reset`."""
    with SlurmCluster(4) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster):
    """Four nodes, all up, without jobs."""
    yield slurm_cluster
    slurm_cluster.reset()


@pytest.fixture(scope="session")
def all_ssh_hosts(engines):
    """Three hosts with sshd, for fixtures that outlast a test."""
    with SshHosts(3) as hosts:
        yield hosts


@pytest.fixture
def ssh_hosts(all_ssh_hosts):
    """Three hosts with sshd, all reachable, with nothing else running."""
    yield all_ssh_hosts
    all_ssh_hosts.reset()


@pytest.fixture(scope="session")
def all_hosts(engines):
    """Three hosts and a natted one, for fixtures that outlast a test."""
    with Hosts(3, natted=True) as hosts:
        yield hosts


@pytest.fixture
def hosts(all_hosts):
    """Three hosts and a natted one, all reachable, with nothing running."""
    yield all_hosts
    all_hosts.reset()
