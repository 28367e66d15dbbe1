"""A Slurm cluster whose nodes are namespaces and whose controller is this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.engines.harness.host import Host
from tests.engines.harness.namespaces import Hosts
from tests.engines.harness.packages import find, install
from tests.engines.harness.slurm_conf import slurm_conf
from tests.engines.harness.waiting import Daemon, EngineError, accepts, run, wait_until

START_S = 30.0
USABLE = {"idle", "mixed", "allocated", "completing"}


class SlurmCluster:
    """Nodes ``n1``, ``n2``, ... under one controller; with ``env`` Slurm's commands see it.

    Partitions: ``main`` (default), ``low`` (its jobs are cancelled where ``urgent`` needs the
    node), ``urgent``, and ``closed`` (its jobs stay pending).
    """

    def __init__(self, nodes: int = 4) -> None:
        self.hosts = Hosts(nodes, prefix="n")
        self.env: dict[str, str] = {}
        self._daemons: dict[str, Daemon] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SlurmCluster:
        install("munged", "slurmctld", "slurmd", "srun")
        with ExitStack() as stack:
            stack.enter_context(self.hosts)
            stack.callback(self._kill_daemons)
            self._write_files()
            self._start_munged()
            self._start_slurmctld()
            for name, host in self.hosts.items():
                # Where Slurm's commands look on a node if a job does not inherit SLURM_CONF.
                host.run(["mount", "--bind", str(self._folder / "etc"), "/etc/slurm"])
                self._start_slurmd(name)
            self.wait_until_up(*self.hosts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def head_address(self) -> str:
        """This machine's address that the nodes can reach."""
        return self.hosts.head_address

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return list(self.hosts)

    def __getitem__(self, node: str) -> Host:
        return self.hosts[node]

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, input: str | None = None) -> str:
        """What a command prints that sees this cluster, ``squeue`` for example."""
        return run(argv, timeout_s=timeout_s, env={**os.environ, **self.env}, input=input)

    def states(self) -> dict[str, str]:
        """Each node's state in Slurm's words, such as ``idle``, ``down*``."""
        lines = self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"]).splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> list[str]:
        """The ids of all jobs that are pending, running or completing."""
        return self.run(["squeue", "-h", "-o", "%A"]).split()

    def wait_until_up(self, *nodes: str, deadline_s: float = START_S) -> None:
        """Wait until these nodes take jobs."""
        self._wait(
            lambda: all(self.states().get(node) in USABLE for node in nodes),
            f"nodes {' '.join(nodes)} up",
            deadline_s,
        )

    def cut(self, node: str) -> None:
        """Lose all that goes to or from this node; its tasks keep running."""
        self.hosts.cut(node)

    def mend(self, node: str) -> None:
        """Undo `cut`. A node that was found down comes back by itself; `revive` waits for that."""
        self.hosts.mend(node)

    def kill_slurmd(self, node: str) -> None:
        """End only the daemon; the node's tasks keep running."""
        self._daemons[node].kill()

    def kill_node(self, node: str) -> None:
        """End all that runs on the node, as a power failure would."""
        self.hosts[node].kill_processes()
        self._daemons[node].kill()

    def stop_controller(self) -> None:
        """End slurmctld in order; the nodes and their tasks go on."""
        self._daemons["slurmctld"].process.terminate()
        self._daemons["slurmctld"].process.wait(START_S)

    def start_controller(self) -> None:
        """Start slurmctld again, which then knows all that it knew."""
        self._start_slurmctld()
        self.wait_until_up(*self.hosts)

    def revive(self, node: str, deadline_s: float = START_S) -> None:
        """Bring a node back that was cut off or killed, and wait until it takes jobs."""
        self.mend(node)
        if self._daemons[node].process.poll() is not None:
            self._start_slurmd(node)
        self._wait(lambda: self._resumed(node), f"{node} up again", deadline_s)
        self.wait_until_up(node, deadline_s=deadline_s)

    def _resumed(self, node: str) -> bool:
        """Whether the node needs no help any more; slurmd may register at that very moment."""
        if self.states()[node].strip("*") not in {"down", "drained", "draining"}:
            return True
        with contextlib.suppress(EngineError):
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        return False

    def reset(self) -> None:
        """Mend all links, bring all that was killed back, cancel all jobs, end what they left."""
        for node in self.nodes:
            self.mend(node)
        if self._daemons["slurmctld"].process.poll() is not None:
            self._start_slurmctld()
        for node, state in self.states().items():
            if state not in USABLE or self._daemons[node].process.poll() is not None:
                self.revive(node)
        if self.jobs():
            self.run(["scancel", "--user=root"])
            self._wait(lambda: not self.jobs(), "all jobs gone", START_S)
        for node, host in self.hosts.items():
            host.kill_processes(spare=self._daemons[node].process.pid)

    @property
    def _folder(self) -> Path:
        return self.hosts.claim.folder

    @property
    def _port(self) -> int:
        # slurmctld listens on all addresses, and another cluster may run on this machine.
        return 17000 + self.hosts.claim.number

    def _log(self, daemon: str) -> Path:
        return self._folder / f"{daemon}.log"

    def _wait(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        logs = [self._log(name) for name in ("slurmctld", *self.hosts)]
        wait_until(condition, what, deadline_s, logs)

    def _kill_daemons(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()

    def _write_files(self) -> None:
        (self._folder / "state").mkdir()
        (self._folder / "munge.key").write_bytes(os.urandom(1024))
        (self._folder / "munge.key").chmod(0o400)
        etc = self._folder / "etc"
        etc.mkdir()
        (etc / "cgroup.conf").write_text("CgroupAutomount=no\n")
        conf = etc / "slurm.conf"
        addresses = {name: host.address for name, host in self.hosts.items()}
        head = f"{socket.gethostname()}({self.head_address})"
        conf.write_text(slurm_conf(self._folder, head, self._port, addresses))
        self.env = {"SLURM_CONF": str(conf), **self.hosts.claim.env}

    def _start(self, name: str, argv: list[str]) -> Daemon:
        daemon = Daemon(argv, self._log(name), {**os.environ, **self.env})
        self._daemons[name] = daemon
        return daemon

    def _start_munged(self) -> None:
        files = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }
        options = [f"--{option}={self._folder / file}" for option, file in files.items()]
        munged = self._start("munged", [find("munged"), "--foreground", "--force", *options])
        munged.wait_until((self._folder / "munge.socket").exists, "munged's socket", START_S)

    def _start_slurmctld(self) -> None:
        slurmctld = self._start("slurmctld", [find("slurmctld"), "-D", "-i"])
        slurmctld.wait_until(
            lambda: accepts(self.head_address, self._port), "slurmctld answers", START_S
        )

    def _start_slurmd(self, node: str) -> None:
        (self._folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        argv = [find("slurmd"), "-D", "-N", node]
        env = {**os.environ, **self.env}
        self._daemons[node] = self.hosts[node].daemon(argv, self._log(node), env)
