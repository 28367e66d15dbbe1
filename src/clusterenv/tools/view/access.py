"""Who may see the page: anyone who has the token and calls the server by a known name. Pure.

The name matters too: somebody else's page could make its own name resolve to 127.0.0.1, and the
browser would then let it read our answers (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Access:
    """What a request must have."""

    token: str
    names: Sequence[str]
    """By which the server may be called, besides the loopback names."""
    port: int

    @property
    def cookie(self) -> str:
        """The cookie's name, with the port: browsers send a port's cookies to all others too."""
        return f"clusterenv-view-{self.port}"

    def url(self, name: str) -> str:
        """What to open in a browser."""
        called = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
        host = f"[{called}]" if ":" in called else called
        return f"http://{host}:{self.port}/?token={quote(self.token, safe='')}"

    def knows(self, host: str) -> bool:
        """Whether the ``Host`` header has one of our names; at any port, because of tunnels."""
        return name_in(host) in {*_LOOPBACK, *(name.lower() for name in self.names)}

    def admits(self, *given: str | None) -> bool:
        """Whether one of these is the token, compared in constant time."""
        ours = self.token.encode()
        found = [hmac.compare_digest(one.encode(errors="replace"), ours) for one in given if one]
        return any(found)


def name_in(host: str) -> str:
    """``localhost:8000`` → ``localhost``, ``[::1]:8000`` → ``::1``."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def bearer_in(header: str) -> str | None:
    """The token of an ``Authorization`` header, as Prometheus sends it."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches this address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
