"""Workers on a list of hosts, reached by the system's own ssh."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.launchers.base import ONE_THREAD, Status
from clusterenv.launchers.processes import ProcessLauncher, how_it_ended

_ASK_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 20
_SSH_FAILED = 255


class SshLauncher(ProcessLauncher):
    """One ssh connection per worker; a worker ends when its connection does.

    Hosts are used in turn, each as often as its count says; a replacement for a lost worker goes
    to the next host. ssh must work without a password (keys, an agent), as the user's ssh
    configuration says.

    Args:
        hosts: Names as ssh takes them, with how many workers each runs at most (``{"a": 4,
            "b": 2}``), or a list of names (as many workers as are needed, in turn), or the path of
            a file with a host and a count per line.
        python: The Python to run on the hosts. By default the path of the head's own.
        setup: Shell commands to run before: ``"module load cuda"``, ``"source env/bin/activate"``.
        ssh: The ssh command and its options.
        environment: Environment variables for the workers.
        log_dir: Where each worker's output goes here (``worker-0.0.log`` …). By default it goes to
            files without a name, of which errors show the end.
    """

    spawns_here = False
    shares_memory = False

    def __init__(
        self,
        hosts: Mapping[str, int] | Sequence[str] | Path,
        *,
        python: str = sys.executable,
        setup: str = "",
        ssh: Sequence[str] = ("ssh",),
        environment: Mapping[str, str] | None = None,
        log_dir: str | Path | None = None,
    ) -> None:
        super().__init__(log_dir)
        self._places = _places(hosts)
        self._turns = itertools.cycle(self._places)
        self._ssh, self._python, self._setup = tuple(ssh), python, setup
        self._environment = {**ONE_THREAD, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._host_by_worker: dict[str, str] = {}
        if shutil.which(self._ssh[0]) is None:
            raise ValueError(
                f"there is no {self._ssh[0]!r} on this machine: install OpenSSH's client"
            )

    @property
    def towards(self) -> str:
        """Where the first host is, as ssh's configuration says."""
        answer = subprocess.run(
            [*self._ssh, "-G", self._places[0]],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
        )
        for line in answer.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
        raise ValueError(f"ssh does not know {self._places[0]!r}: {answer.stderr.strip()}")

    def command(self, worker: str) -> list[str]:
        """What to run, here, for this worker."""
        host = self._host_by_worker[worker] = next(self._turns)
        # BatchMode: a question for a password would wait for ever.
        options = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5"]
        options += ["-o", f"ConnectTimeout={_CONNECT_TIMEOUT_S}"]
        return [*self._ssh, *options, host, self.remote_command()]

    def remote_command(self) -> str:
        """What to run there."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._environment.items()]
        worker = f"exec env {' '.join(variables)} {shlex.quote(self._python)} -m clusterenv worker"
        return f"{self._setup}\n{worker}" if self._setup else worker

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped, with its host."""
        return {
            worker: Status(status.ended, f"{status.reason} on ssh host {host}")
            if status.ended
            else Status(False, f"started on ssh host {host}")
            for worker, status in super().status().items()
            if (host := self._host_by_worker[worker])
        }

    def _status(self, code: int | None) -> Status:
        if code == _SSH_FAILED:
            return Status(True, "ssh failed or its connection broke")
        return Status(False) if code is None else Status(True, how_it_ended(code))


def _places(hosts: Mapping[str, int] | Sequence[str] | Path) -> list[str]:
    """The hosts in the order in which workers go to them, once around."""
    if isinstance(hosts, Path):
        hosts = _read_hosts(hosts)
    if isinstance(hosts, str):
        raise TypeError(f"hosts={hosts!r}: give a list of names, a dict with counts, or a Path")
    counts = dict(hosts) if isinstance(hosts, Mapping) else dict.fromkeys(hosts, 1)
    if not counts or any(count < 1 for count in counts.values()):
        raise ValueError(f"hosts={hosts!r}: at least one host, and at least one worker on each")
    rounds = range(max(counts.values()))
    return [host for turn in rounds for host, count in counts.items() if turn < count]


def _read_hosts(path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, count = words[0], words[1] if len(words) > 1 else "1"
        if len(words) > 2 or not count.isdigit():
            raise ValueError(f"{path}, line {number}: expected a host and a count, got {line!r}")
        counts[host] = counts.get(host, 0) + int(count)
    return counts
