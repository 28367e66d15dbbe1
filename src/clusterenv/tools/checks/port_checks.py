"""Checks that the head can listen, and that its advertised name leads back to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from clusterenv.tools.checks.findings import Finding, ok, problem, warning
from clusterenv.wire.addresses import Network

_CONNECT_TIMEOUT_S = 3.0
_ELSEWHERE = (
    "if it is a NAT, a forwarding or a Service that only hosts see, that is as it should be"
)
_ANOTHER_PORT = "choose another with network=Network(port=…) (0: any free one)"


def check_port(network: Network, towards: str) -> Iterator[Finding]:
    """Listen as a head would, and call it from this machine as a host would."""
    try:
        host = network.listening_address(towards)
        listener = _listen(host, network.port)
    except ValueError as error:
        yield problem(f"interface: {error}", "pass --interface with one that leads to the hosts")
        return
    except OSError as error:
        yield _cannot_listen(host, network.port, error)
        return
    with listener:
        port = listener.getsockname()[1]
        yield ok(f"port: {host}:{port} can be listened on")
        yield from _check_way_back(listener, network, host, port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Like libzmq: a port whose last run has just ended counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
        listener.settimeout(_CONNECT_TIMEOUT_S)
    except OSError:
        listener.close()
        raise
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> Finding:
    to_do = f"see who has it: ss -ltnp 'sport = :{port}'; or {_ANOTHER_PORT}"
    if isinstance(error, PermissionError):
        to_do = f"ports below 1024 are the system's: {_ANOTHER_PORT}"
    return problem(f"port: cannot listen on {host}:{port} ({error.strerror or error})", to_do)


def _check_way_back(
    listener: socket.socket, network: Network, host: str, port: int
) -> Iterator[Finding]:
    name = network.advertise_host or host
    try:
        address = str(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        yield problem(
            f"advertised name: {name!r} cannot be resolved ({error})",
            "pass network=Network(advertise_host=…) with a name that DNS or /etc/hosts of every "
            "machine knows, or with the address itself",
        )
        return
    trouble = _call(listener, address, port)
    if not trouble:
        yield ok(f"route: {name}:{port} leads back to this machine ({address})")
    elif network.advertise_host is None:
        yield _blocked(host, port, trouble)
    else:
        yield warning(
            f"route: {name}:{port} ({address}) does not lead back to here: {trouble}",
            f"{_ELSEWHERE}; else allow tcp port {port} in the firewall, and check the name",
        )


def _blocked(host: str, port: int, trouble: str) -> Finding:
    return problem(
        f"port: {host}:{port} is open, but nothing gets through to it: {trouble}",
        f"a firewall blocks tcp port {port}: allow it (nft list ruleset shows the rules; "
        "ufw allow, firewall-cmd --add-port), or choose one that is allowed with "
        "network=Network(port=…)",
    )


def _call(listener: socket.socket, address: str, port: int) -> str:
    """Why a call to that address does not arrive here, or empty."""
    word = os.urandom(8)
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT_S) as caller:
            caller.sendall(word)
            called, _ = listener.accept()
            with called:
                called.settimeout(_CONNECT_TIMEOUT_S)
                heard = called.recv(len(word), socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer within {_CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror or error)
    return "" if heard == word else "somebody else answers there"
