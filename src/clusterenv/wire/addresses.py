"""Where the head listens, and what it tells its workers to connect to."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

# Nothing is sent there: only the route is asked for. Reserved for documentation by RFC 5737.
ANYWHERE = "192.0.2.1"
_ANY_PORT = 9


@dataclass(frozen=True)
class Reach:
    """How the head is to be reached; the defaults suit machines that see each other.

    Args:
        interface: The name or address of the network interface to listen on. By default the one
            that leads to the workers.
        advertise_host: The name or address that workers connect to, where it is another than the
            one listened on: behind NAT, a port forwarding or a Kubernetes Service.
        port: The port to listen on; 0 takes a free one.
    """

    interface: str | None = None
    advertise_host: str | None = None
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port={self.port} must be between 0 and 65535 (0: any free one)")

    def listening_address(self, towards: str) -> str:
        """The address to listen on, for workers that are at ``towards``."""
        if self.interface is None:
            return address_towards(towards)
        return address_of_interface(self.interface)


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
            "interface="
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
            raise ValueError(
                f"interface={interface!r} has no IPv4 address ({error}); give the address itself"
            ) from error
    return socket.inet_ntoa(packed[20:24])


def endpoint(host: str, port: int | str) -> str:
    """``tcp://host:port``, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
