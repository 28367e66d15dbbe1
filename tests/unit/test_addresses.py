"""Where the head listens follows from where the workers are."""

import socket

import pytest

from clusterenv.wire import addresses
from clusterenv.wire.addresses import (
    Network,
    address_of_interface,
    address_towards,
    endpoint,
    numeric,
    why_unreachable,
)


def test_towards_this_machine_the_head_listens_on_loopback():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("127.0.0.7") == "127.0.0.1"


def test_an_interface_goes_by_its_name_or_its_address():
    names = [name for _, name in socket.if_nameindex()]
    assert "lo" in names
    assert address_of_interface("lo") == "127.0.0.1"
    assert address_of_interface("127.0.0.3") == "127.0.0.3"
    assert address_of_interface("::1") == "::1"


def test_an_interface_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(
        ValueError, match=r"interface='eth77' is neither an address nor one of .*lo"
    ):
        address_of_interface("eth77")


def test_a_host_without_a_name_is_named():
    with pytest.raises(ValueError, match=r"no route to 'no\.such\.host\.invalid'.*interface="):
        address_towards("no.such.host.invalid")


def test_the_interface_overrides_the_route():
    assert Network(interface="127.0.0.9").listening_address("192.0.2.1") == "127.0.0.9"
    assert Network().listening_address("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(ValueError, match=f"port={port}"):
        Network(port=port)


def test_ipv6_addresses_get_brackets():
    assert endpoint("::1", 80) == "tcp://[::1]:80"
    assert endpoint("10.0.0.1", 80) == "tcp://10.0.0.1:80"
    assert endpoint("head.example", "*") == "tcp://head.example:*"


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_who_listens_everywhere_advertises_the_address_of_the_route(everywhere):
    assert Network(interface=everywhere).advertised_host(everywhere, "127.0.0.1") == "127.0.0.1"
    network = Network(interface=everywhere, advertise_host="head.example")
    assert network.advertised_host(everywhere, "127.0.0.1") == "head.example"
    assert Network().advertised_host("127.0.0.9", "192.0.2.1") == "127.0.0.9"


def test_an_interface_without_ipv4_goes_by_its_address_of_ipv6(tmp_path, monkeypatch):
    file = tmp_path / "if_inet6"
    file.write_text(
        "fe800000000000000000000000000001 02 40 20 80     eth0\n"
        "fd770000000000000000000000000007 02 40 00 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    monkeypatch.setattr(addresses, "_IPV6_ADDRESSES", file)
    assert addresses._first_ipv6_address("eth0") == "fd77::7"
    assert addresses._first_ipv6_address("lo") == "::1"
    assert addresses._first_ipv6_address("eth1") == ""


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:80", "tcp://[::1]:80"])
def test_an_address_of_numbers_is_taken_as_it_is(address):
    assert numeric(address, 0.0, pytest.fail) == address


def test_a_name_becomes_the_address_that_takes_connections():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert numeric(f"tcp://localhost:{port}", 0.0, pytest.fail) == f"tcp://127.0.0.1:{port}"


def test_a_name_that_leads_nowhere_is_told_and_tried_again(monkeypatch):
    monkeypatch.setattr(addresses, "_PROBE_EVERY_S", 0.001)
    said = []
    with pytest.raises(OSError):
        numeric("tcp://no.such.host.invalid:80", 2.0, said.append)
    assert len(said) == 1
    assert "cannot reach tcp://no.such.host.invalid:80 yet: " in said[0]


@pytest.mark.parametrize("address", ["head:80", "tcp://head", "tcp://head:http", "udp://head:80"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match=f"'{address}' is not a head's address"):
        numeric(address, 0.0, pytest.fail)


def test_the_reason_why_nobody_answers_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = endpoint("127.0.0.1", server.getsockname()[1])
        assert "takes connections" in why_unreachable(address)
    assert "refused" in why_unreachable(address)
