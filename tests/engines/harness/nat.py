"""A host behind a router that hides its address: it can call out, nobody can call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engines.harness.packages import find

if TYPE_CHECKING:
    from tests.engines.harness.host import Host

INSIDE = "192.168.177"
RULES = """
table ip nat {
    chain out {
        type nat hook postrouting priority srcnat;
        oifname "eth0" masquerade
    }
}
table ip hidden {
    chain in {
        type filter hook forward priority filter;
        iifname "eth0" ct state new drop
    }
}
"""


def hide(host: Host, router: Host) -> None:
    """Make ``router`` the only way out of ``host``."""
    router.configure(
        f"link add lan type veth peer name eth0 netns {host.pid}",
        f"addr add {INSIDE}.1/24 dev lan",
        "link set lan up",
    )
    host.configure(
        f"addr add {host.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {INSIDE}.1",
    )
    router.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
    router.run([find("nft"), "-f", "-"], input=RULES)
