"""Where the head listens and what hosts connect to: other families, names, NAT."""

import ipaddress
import socket

import pytest

from clusterenv import ClusterEnv, Limits, LocalLauncher, Network
from tests.engines.attaching import HandStarted, Joined
from tests.engines.checked_runs import Replay
from tests.environments.walks import Placed
from tests.inside import head_address

LIMITS = Limits(lease_s=4.0)


@pytest.fixture
def key_file(tmp_path):
    return tmp_path / "run.key"


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def bracketed(address6):
    """An address of IPv6 as it is in a URL, in its shortest form."""
    return f"[{ipaddress.ip_address(address6)}]"


def assert_works(launcher, host, listens_at, **network):
    kwargs = {"launcher": launcher, "limits": LIMITS, "network": Network(**network)}
    with ClusterEnv([Placed] * 2, **kwargs) as e:
        assert head_address(e).startswith(f"tcp://{listens_at}:")
        assert e.call("host") == (host.name,) * 2
        Replay(e).rollout()
    assert launcher.joined[0].wait() == 0


def test_the_interface_is_that_of_the_route(hosts, key_file):
    host = hosts["h1"]
    assert_works(HandStarted(key_file, [host]), host, hosts.head_address)


def test_the_route_may_be_one_of_ipv6(hosts, key_file):
    host = hosts["h1"]
    launcher = HandStarted(key_file, [host], towards=host.address6)
    assert_works(launcher, host, bracketed(hosts.head_address6))


def test_the_interface_may_be_an_address_of_ipv6(hosts, key_file):
    host, at = hosts["h2"], hosts.head_address6
    assert_works(HandStarted(key_file, [host]), host, bracketed(at), interface=at)


@pytest.mark.parametrize("launcher", [None, LocalLauncher(hosts=2)], ids=["one", "two"])
def test_loopback_of_ipv6_works_for_hosts_of_this_machine(launcher):
    kwargs = {"shared_memory": False} if launcher is None else {"launcher": launcher}
    with ClusterEnv([Placed] * 2, network=Network(interface="::1"), **kwargs) as envs:
        assert head_address(envs).startswith("tcp://[::1]:")
        Replay(envs).rollout()


def test_the_interface_may_be_a_name(hosts, key_file):
    host, bridge = hosts["h1"], hosts.claim.bridge
    launcher = HandStarted(key_file, [host], towards="127.0.0.1")
    assert_works(launcher, host, hosts.head_address, interface=bridge)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_who_listens_everywhere_advertises_the_address_of_the_route(hosts, key_file, everywhere):
    host = hosts["h1"]
    launcher = HandStarted(key_file, [host])
    assert_works(launcher, host, hosts.head_address, interface=everywhere)


def test_a_host_behind_nat_works(hosts, key_file):
    launcher = HandStarted(key_file, [hosts.natted], towards=hosts["h1"].address)
    assert_works(launcher, hosts.natted, hosts.head_address)


def test_a_name_with_addresses_of_both_families_leads_to_the_one_that_listens(hosts, key_file):
    # The name has an address of IPv6 too, where nobody listens.
    host = hosts["h1"]
    launcher = HandStarted(key_file, [host])
    assert_works(launcher, host, "head", advertise_host="head")


def test_a_host_may_know_better_where_the_head_is(hosts, key_file):
    host, port = hosts["h1"], free_port()
    launcher = HandStarted(key_file, [host], "--head", f"tcp://{hosts.head_address}:{port}")
    assert_works(launcher, host, "192.0.2.7", advertise_host="192.0.2.7", port=port)


def test_why_the_head_cannot_be_reached_is_in_the_log_of_the_host(hosts, key_file):
    launcher = HandStarted(key_file, [hosts["h1"]])
    with ClusterEnv([Placed], launcher=launcher, limits=LIMITS):
        folder = key_file.parent
        heads = ["tcp://no.such.host.invalid:9", f"tcp://{hosts.head_address}:9", "head:9"]
        lost = [Joined(hosts["h2"], key_file, folder, "--head", head) for head in heads]
        assert [joined.wait() for joined in lost] == [1, 1, 1]
    last_lines = [joined.log.splitlines()[-1] for joined in lost]
    for line, head, reason in zip(last_lines, heads, ["name", "refused", "tcp://HOST:PORT"]):
        assert head in line
        assert reason in line


def test_a_port_that_is_taken_is_named(hosts, key_file):
    with socket.create_server((hosts.head_address, 0)) as taken:
        port = taken.getsockname()[1]
        launcher = HandStarted(key_file, [hosts["h1"]])
        with pytest.raises(OSError, match=rf"cannot listen on .*:{port} .*Network\(.*port="):
            ClusterEnv([Placed], launcher=launcher, network=Network(port=port))
