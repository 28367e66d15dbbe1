"""Where the head listens follows from where the workers are."""

import socket

import pytest

from clusterenv.wire.addresses import Reach, address_of_interface, address_towards, endpoint


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
    assert Reach(interface="127.0.0.9").listening_address("192.0.2.1") == "127.0.0.9"
    assert Reach().listening_address("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(ValueError, match=f"port={port}"):
        Reach(port=port)


def test_ipv6_addresses_get_brackets():
    assert endpoint("::1", 80) == "tcp://[::1]:80"
    assert endpoint("10.0.0.1", 80) == "tcp://10.0.0.1:80"
    assert endpoint("head.example", "*") == "tcp://head.example:*"
