"""Hosts and the network between them and this machine; links can be cut and mended."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from tests.engines.harness import nat
from tests.engines.harness.host import Host
from tests.engines.harness.packages import find, install
from tests.engines.harness.runs import claimed, links, members
from tests.engines.harness.waiting import run


class Hosts(Mapping[str, Host]):
    """``count`` hosts by name, linked with this machine, the head, by a bridge.

    With ``natted`` there is one more host, ``natted``, behind a ``router`` that hides its address.
    """

    def __init__(self, count: int = 3, prefix: str = "h", natted: bool = False) -> None:
        self._names = [f"{prefix}{i + 1}" for i in range(count)]
        self._with_nat = natted
        self._hosts: dict[str, Host] = {}
        self._ports: dict[str, str] = {}
        self._stack = ExitStack()
        self.natted: Host
        self.router: Host

    def __enter__(self) -> Hosts:
        install("ip", *(["nft"] if self._with_nat else []))
        with ExitStack() as stack:
            self.claim = stack.enter_context(claimed())
            self._open_bridge()
            self._write_etc_hosts()
            for number, name in enumerate(self._names, start=11):
                self._hosts[name] = self._linked_host(name, number, stack)
            if self._with_nat:
                self.router = self._linked_host("router", 2, stack)
                self.natted = Host(self.claim, "natted", f"{nat.INSIDE}.2", address6="")
                stack.callback(self.natted.close)
                nat.hide(self.natted, self.router)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def head_address(self) -> str:
        """This machine's address that the hosts can reach."""
        return self.address(1)

    @property
    def head_address6(self) -> str:
        """The same as IPv6."""
        return self.address6(1)

    def address(self, number: int) -> str:
        """An address in the network of these hosts; the head is 1, hosts count from 11."""
        return f"10.199.{self.claim.number}.{number}"

    def address6(self, number: int) -> str:
        """The same as IPv6."""
        return str(ipaddress.ip_address(f"fd77:ce:{self.claim.number:x}::{number:x}"))

    def cut(self, name: str) -> None:
        """From now on all that goes to or from this host is lost, silently."""
        run([find("ip"), "link", "set", self._ports[name], "nomaster"])

    def mend(self, name: str) -> None:
        """Undo `cut`."""
        run([find("ip"), "link", "set", self._ports[name], "master", self.claim.bridge])

    def reset(self) -> None:
        """End all that was started on the hosts and mend all links."""
        for host in self.everyone():
            host.kill_processes()
        for name in self._ports:
            self.mend(name)

    def processes(self) -> list[int]:
        """All processes of this harness, those at the head's side too."""
        return members(self.claim.mark, {host.network for host in self.everyone()})

    def links(self) -> list[str]:
        """All network links of this harness at the head's side."""
        return links(self.claim)

    def everyone(self) -> list[Host]:
        """All hosts, the natted one and its router too."""
        return [*self.values(), *([self.natted, self.router] if self._with_nat else [])]

    def _open_bridge(self) -> None:
        bridge = self.claim.bridge
        _ip(
            # Without an address of its own a bridge takes a port's, and changes it as ports go.
            f"link add {bridge} address 02:ce:00:00:{self.claim.number:02x}:01 type bridge",
            f"addr add {self.head_address}/24 dev {bridge}",
            f"addr add {self.head_address6}/64 dev {bridge} nodad",
            f"link set {bridge} up",
        )

    def _write_etc_hosts(self) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for number, name in [
            (1, f"{socket.gethostname()} head"),
            *enumerate(self._names, start=11),
        ]:
            lines += [f"{self.address(number)} {name}", f"{self.address6(number)} {name}"]
        (self.claim.folder / "etc-hosts").write_text("\n".join(lines) + "\n")

    def _linked_host(self, name: str, number: int, stack: ExitStack) -> Host:
        host = Host(self.claim, name, self.address(number), self.address6(number))
        stack.callback(host.close)
        port = self._ports[name] = f"{self.claim.bridge}-{number}"
        _ip(
            f"link add {port} type veth peer name eth0 netns {host.pid}",
            f"link set {port} master {self.claim.bridge} up",
        )
        host.configure(
            f"addr add {host.address}/24 dev eth0",
            f"addr add {host.address6}/64 dev eth0 nodad",
            "link set eth0 up",
            f"route add default via {self.head_address}",
        )
        return host


def _ip(*commands: str) -> None:
    run([find("ip"), "-batch", "-"], input="\n".join(commands) + "\n")
