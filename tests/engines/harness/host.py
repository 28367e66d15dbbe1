"""A host that is a set of namespaces: own network, host name, /etc/hosts, /dev/shm and boot id.

It shares the file system and the process table with this machine, so that tests can look at its
processes and kill them.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.engines.harness.packages import find
from tests.engines.harness.runs import (
    ANCHOR,
    Run,
    cmdline,
    kill,
    machine_networks,
    network_of,
    pids,
    start_time,
)
from tests.engines.harness.waiting import Daemon, EngineError, run, tails, wait_until

UNSHARE = ["unshare", "--net", "--uts", "--mount"]
SETUP = """
hostname "$1"
mount --bind "$2/etc-hosts" /etc/hosts
mount --bind "$2/$1.boot-id" /proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs /dev/shm
if [ -e ~root/.bashrc ]; then mount --bind /dev/null ~root/.bashrc; fi
ip link set lo up
touch "$2/$1.ready"
exec sleep infinity
"""
"""What makes a new set of namespaces a host of its own to programs that ask.

Shells that sshd starts read ``.bashrc``; killed there, a developer's own could leave locks behind.
"""


class Host:
    """One host. It lasts as long as the ``Hosts`` that made it."""

    def __init__(self, claim: Run, name: str, address: str, address6: str) -> None:
        self.name, self.address, self.address6 = name, address, address6
        self._claim = claim
        self._started: list[subprocess.Popen[Any]] = []
        (claim.folder / f"{name}.boot-id").write_text(f"{uuid.uuid4()}\n")
        self._anchor = Daemon(
            [*UNSHARE, "sh", "-e", "-c", SETUP, "sh", name, str(claim.folder)],
            claim.folder / f"{name}.log",
            {**os.environ, ANCHOR: claim.mark},
        )
        self._anchor.wait_until((claim.folder / f"{name}.ready").exists, f"host {name}", 20.0)
        self.network = network_of(self.pid)
        if self.network in {None, *machine_networks()}:
            raise EngineError(f"host {name} has no network of its own{tails([self._anchor.log])}")

    @property
    def pid(self) -> int:
        """The process that keeps the namespaces."""
        return self._anchor.process.pid

    def command(self, argv: Sequence[str], cwd: Path | str | None = None) -> list[str]:
        """The command line that runs ``argv`` on this host."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount"]
        return [*enter, f"--wdns={cwd or Path.cwd()}", "--", *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        cwd: Path | str | None = None,
    ) -> str:
        """What the command prints there; an error with all that it said if it fails."""
        command = self.command(argv, cwd)
        return run(command, timeout_s=timeout_s, env=self._marked(env), input=input)

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        **kwargs: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command there; whatever still runs is killed with the hosts."""
        process = subprocess.Popen(self.command(argv, cwd), env=self._marked(env), **kwargs)
        self._started.append(process)
        return process

    def daemon(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> Daemon:
        """Start a daemon there, in the foreground."""
        return Daemon(self.command(argv, "/"), log, self._marked(env))

    def _marked(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**(os.environ if env is None else env), **self._claim.env}

    def processes(self, command: str = "") -> list[int]:
        """The processes that run there; only those with ``command`` in their command line."""
        there = [pid for pid in pids() if pid != self.pid and network_of(pid) == self.network]
        return [pid for pid in there if start_time(pid) is not None and command in cmdline(pid)]

    def kill_processes(self, spare: int | None = None) -> None:
        """End all that runs there but ``spare`` with -9, as a power failure would."""

        def gone() -> bool:
            left = [pid for pid in self.processes() if pid != spare]
            for pid in left:
                kill(pid)
            return not left

        wait_until(gone, f"all processes of {self.name} gone", 20.0)

    def configure(self, *commands: str) -> None:
        """Run ``ip`` commands there."""
        self.run([find("ip"), "-batch", "-"], input="\n".join(commands) + "\n")

    def close(self) -> None:
        """End it with all its processes."""
        self.kill_processes()
        self._anchor.kill()
        for process in self._started:
            _reap(process)


def _reap(process: subprocess.Popen[Any]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            # What was still to be written to a killed process has nowhere to go.
            with suppress(BrokenPipeError):
                stream.close()
    process.wait()
