"""A Ray cluster whose nodes are namespaces; this machine is its head node, without any CPU."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.engines.harness.host import Host
from tests.engines.harness.namespaces import Hosts
from tests.engines.harness.runs import members
from tests.engines.harness.waiting import Daemon

START_S = 90.0
FIRST_PORT = 6400
FIRST_CLIENT_PORT = 6700
OBJECT_STORE_BYTES = 80_000_000
HURRY = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
"""A dead node is noticed within seconds, a slow one is spared; no process starts unneeded."""


class RayCluster:
    """Nodes ``r1``, ``r2``, ... with ``cpus`` CPUs each; programs that get ``env`` find it.

    One more host, ``outside``, sees the network but is no node.
    """

    def __init__(self, nodes: int = 3, cpus: int = 2) -> None:
        self.hosts = Hosts(nodes + 1, prefix="r")
        self.nodes = [f"r{number + 1}" for number in range(nodes)]
        self.cpus = cpus
        self.env: dict[str, str] = {}
        self._daemons: dict[str, Daemon] = {}
        self._stack = ExitStack()

    def __enter__(self) -> RayCluster:
        with ExitStack() as stack:
            stack.enter_context(self.hosts)
            stack.callback(self._kill_daemons)
            self._write_token()
            self._start_head()
            for name in self.nodes:
                self._give_temporary_folder(name)
                self._start_node(name)
            self.wait_until_up(*self.nodes)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """What ``ray.init`` takes."""
        return f"{self.hosts.head_address}:{FIRST_PORT + self.hosts.claim.number}"

    @property
    def client_address(self) -> str:
        """What ``ray.init`` takes outside the cluster."""
        return f"ray://{self.hosts.head_address}:{FIRST_CLIENT_PORT + self.hosts.claim.number}"

    @property
    def outside(self) -> Host:
        """A host that is no node."""
        return self.hosts[f"r{len(self.nodes) + 1}"]

    def __getitem__(self, node: str) -> Host:
        return self.hosts[node]

    def kill_node(self, node: str) -> None:
        """End all that runs on the node, as a power failure would."""
        self.hosts[node].kill_processes()
        self._daemons[node].kill()

    def reset(self) -> None:
        """Bring back the nodes that were killed."""
        dead = [name for name in self.nodes if self._daemons[name].process.poll() is not None]
        for name in dead:
            self._empty_temporary_folder(name)
            self._start_node(name)
        self.wait_until_up(*dead)

    def wait_until_up(self, *nodes: str) -> None:
        """Wait until these nodes take work."""
        for node in nodes:
            _wait_until_up(self._daemons[node], f"Ray node {node}")

    def processes(self) -> list[int]:
        """All processes of this cluster, the head node's too."""
        return members(self.hosts.claim.mark, {host.network for host in self.hosts.everyone()})

    @property
    def _folder(self) -> Path:
        return self.hosts.claim.folder

    def _write_token(self) -> None:
        token = self._folder / "ray-token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def _start_head(self) -> None:
        address, port = self.address.split(":")
        folder = self.hosts.claim.short_folder
        options = ["--head", f"--node-ip-address={address}", f"--port={port}", "--num-cpus=0"]
        options += [f"--temp-dir={folder}", "--include-dashboard=false"]
        options += [f"--ray-client-server-port={FIRST_CLIENT_PORT + self.hosts.claim.number}"]
        argv, env = _command(options), {**self._daemon_env(), **self.hosts.claim.env}
        head = self._daemons["head"] = Daemon(argv, self._folder / "ray-head.log", env)
        _wait_until_up(head, "Ray's head node")

    def _give_temporary_folder(self, name: str) -> None:
        # Ray uses the head node's path on all nodes, and two on one disk would mix up their files.
        own = self._folder / f"{name}.tmp"
        own.mkdir()
        self.hosts[name].run(["mount", "--bind", str(own), str(self.hosts.claim.short_folder)])

    def _empty_temporary_folder(self, name: str) -> None:
        # Beside the old raylet's socket the new one would get another name, and drivers on this
        # node look for it under the name that the head node's raylet has.
        for session in (self._folder / f"{name}.tmp").iterdir():
            if session.is_symlink() or session.is_file():
                session.unlink()
            else:
                shutil.rmtree(session)

    def _start_node(self, name: str) -> None:
        host, log = self.hosts[name], self._folder / f"ray-{name}.log"
        log.unlink(missing_ok=True)
        options = [f"--address={self.address}", f"--node-ip-address={host.address}"]
        options += [f"--num-cpus={self.cpus}", f'--resources={{"{name}": 1}}']
        self._daemons[name] = host.daemon(_command(options), log, self._daemon_env())

    def _daemon_env(self) -> dict[str, str]:
        # A driver's address would make `ray start` join that; its token is made in the home.
        own = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        return {**os.environ, **HURRY, **own, "HOME": str(self._folder)}

    def _kill_daemons(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()


def _command(options: list[str]) -> list[str]:
    ray = str(Path(sys.executable).with_name("ray"))
    # Workers take any port: this machine may have another cluster.
    ports = ["--min-worker-port=0", "--max-worker-port=0"]
    size = f"--object-store-memory={OBJECT_STORE_BYTES}"
    return [ray, "start", "--block", "--include-log-monitor=false", size, *ports, *options]


def _wait_until_up(daemon: Daemon, what: str) -> None:
    def is_up() -> bool:
        return "Ray runtime started" in daemon.log.read_text(errors="replace")

    daemon.wait_until(is_up, what, START_S)
