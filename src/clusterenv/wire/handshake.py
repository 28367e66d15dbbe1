"""Decides whether a host that says Hello can work for this head."""

from __future__ import annotations

from clusterenv.wire.messages import PROTOCOL_VERSION, Hello
from clusterenv.wire.versions import disagreements, remedy


def refusal(own: dict[str, str], hello: Hello) -> str:
    """Why this host cannot work for a head with the versions ``own``; empty if it can."""
    problems = disagreements(own, hello.versions)
    if hello.protocol != PROTOCOL_VERSION:
        problems.insert(0, f"protocol {hello.protocol} instead of {PROTOCOL_VERSION}")
    return "; ".join([*problems, *filter(None, [remedy(own, hello.versions)])])
