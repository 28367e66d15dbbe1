"""Where the head listens, and what it tells its hosts to connect to."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Nothing is sent there; only the route is asked for. Reserved for documentation by RFC 5737.
ANYWHERE = "192.0.2.1"
_ANY_PORT = 9
_PROBE_S = 3.0
_PROBE_EVERY_S = 0.5
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Network:
    """Where the head listens and how to reach it; the defaults suit machines that see each other.

    Args:
        interface: The name or address of the network interface to listen on; ``"0.0.0.0"`` and
            ``"::"`` mean all of them. By default the one that leads to the hosts.
        advertise_host: The name or address that hosts connect to, if it differs from the one
            listened on: behind NAT, a forwarded port or a Kubernetes Service.
        port: The port to listen on; 0 picks a free one.
        compress: Whether hosts may compress image observations on their way, without loss; they
            do so only where it pays.
    """

    interface: str | None = None
    advertise_host: str | None = None
    port: int = 0
    compress: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port={self.port} must be between 0 and 65535 (0: any free one)")

    def listening_address(self, towards: str) -> str:
        """The address to listen on for hosts at ``towards``."""
        if self.interface is None:
            return address_towards(towards)
        return address_of_interface(self.interface)

    def advertised_host(self, listening: str, towards: str) -> str:
        """What hosts at ``towards`` connect to if the head listens on ``listening``."""
        if self.advertise_host is not None:
            return self.advertise_host
        anywhere = ipaddress.ip_address(listening.partition("%")[0]).is_unspecified
        return address_towards(towards) if anywhere else listening


def address_towards(host: str) -> str:
    """The address of this machine from which packets to ``host`` would leave."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"there is no route to {host!r} ({error}): check the name, or say where to listen with "
            "network=Network(interface=…)"
        ) from error


def address_of_interface(interface: str) -> str:
    """The address of a network interface, given its name or the address itself."""
    try:
        return str(ipaddress.ip_address(interface))
    except ValueError:
        pass
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ValueError(
            f"interface={interface!r} is neither an address nor one of {', '.join(names)}"
        )
    return _first_address(interface)


def _first_address(interface: str) -> str:
    import fcntl
    import struct

    # SIOCGIFADDR: the standard library has no other way to ask for it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe, 0x8915, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            if address := _first_ipv6_address(interface):
                return address
            raise ValueError(
                f"interface={interface!r} has no address ({error}); give another, or the address "
                "itself"
            ) from error
    return socket.inet_ntoa(packed[20:24])


def _first_ipv6_address(interface: str) -> str:
    """The first address that reaches beyond its own link, or empty."""
    if not _IPV6_ADDRESSES.exists():
        return ""
    for line in _IPV6_ADDRESSES.read_text().splitlines():
        digits, _, _, _, _, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if name == interface and not address.is_link_local:
            return str(address)
    return ""


def endpoint(host: str, port: int | str) -> str:
    """``tcp://host:port``, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def numeric(address: str, patience_s: float, say: Callable[[str], None]) -> str:
    """``tcp://name:port`` with the first of the name's addresses that accepts a connection.

    libzmq would try only the first, perhaps of the wrong family, and not say what is wrong.
    OSError with the last reason, if there is none within ``patience_s``.
    """
    host, port = _split(address)
    if _is_numeric(host):
        return address
    deadline, said = time.monotonic() + patience_s, ""
    while True:
        try:
            with socket.create_connection((host, port), _PROBE_S) as probe:
                return endpoint(str(probe.getpeername()[0]), port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            if str(error) != said:
                say(f"cannot reach {address} yet: {error}")
            said = str(error)
        time.sleep(_PROBE_EVERY_S)


def why_unreachable(address: str) -> str:
    """Why nobody answers there, in the network's own words."""
    try:
        socket.create_connection(_split(address), _PROBE_S).close()
    except OSError as error:
        return str(error)
    return "it takes connections, but does not answer as a head does"


def _split(address: str) -> tuple[str, int]:
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not host or not port.isdigit():
        raise ValueError(f"{address!r} is not a head's address: expected tcp://HOST:PORT")
    return host.strip("[]"), int(port)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
