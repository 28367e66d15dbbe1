"""Real engines for the tests, started once and handed out whole to each test."""

from pathlib import Path

import pytest

from clusterenv import ClusterEnv, Limits
from clusterenv.launchers.ssh import SshLauncher
from tests.engines.checked_runs import LEASE_S
from tests.engines.harness import Hosts, RayCluster, SlurmCluster, SshHosts, why_not_here
from tests.environments.walks import Placed


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


@pytest.fixture
def slurm_commands(slurm, monkeypatch):
    """Slurm's commands, and so the launcher, see the cluster of the tests."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)


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


@pytest.fixture
def ssh_launcher(ssh_hosts):
    """Make a launcher for these hosts, by default all; two workers on each."""

    def make(hosts=None, **kwargs):
        ssh = ("ssh", "-F", str(ssh_hosts.config), "-o", "ConnectTimeout=3")
        return SshLauncher(hosts or dict.fromkeys(ssh_hosts.names, 2), ssh=ssh, **kwargs)

    return make


@pytest.fixture
def ssh_cluster(ssh_launcher):
    """Open four walks on two hosts with two workers each; closed at the end."""
    opened = []

    def make(hosts=("host1", "host2"), makers=(Placed,) * 4, **kwargs):
        hosts = hosts if isinstance(hosts, Path) else dict.fromkeys(hosts, 2)
        kwargs = {"launcher": ssh_launcher(hosts), "limits": Limits(lease_s=LEASE_S), **kwargs}
        opened.append(ClusterEnv(list(makers), **kwargs))
        return opened[-1]

    yield make
    for envs in opened:
        envs.close(terminate=True)


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


@pytest.fixture(scope="module")
def all_of_ray(engines):
    """Three nodes, for fixtures that outlast a test; their daemons are never quite idle."""
    with RayCluster(3) as cluster:
        yield cluster


@pytest.fixture
def ray_cluster(all_of_ray, monkeypatch):
    """Three nodes, all up; what looks for a Ray cluster finds this one."""
    for name, value in all_of_ray.env.items():
        monkeypatch.setenv(name, value)
    _tell_ray_of_its_token()
    yield all_of_ray
    all_of_ray.reset()


def _tell_ray_of_its_token():
    # Ray looks for it only when it is imported, and that was long ago.
    from ray._private.authentication_test_utils import reset_auth_token_state

    reset_auth_token_state()
