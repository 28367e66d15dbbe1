"""Workers on a list of hosts, reached by the system's own ssh."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.launchers.base import ONE_THREAD, Order, Status
from clusterenv.launchers.processes import ProcessLauncher, how_it_ended

_ASK_TIMEOUT_S = 10.0
_OPTIONS = (
    "BatchMode=yes",  # a question for a password would wait for ever
    "ConnectTimeout=20",
    "ServerAliveInterval=5",
    "ControlMaster=no",  # the end of one worker's client must not be that of others
    "ClearAllForwardings=yes",
)
# A shell stays beside the worker, for ssh reports exit codes but no signals. Standard input and
# output may be one socket there, and on that nothing but the end of the head may cause a signal.
_THERE = """oom() { grep ^oom_kill /proc/vmstat; } 2>/dev/null
before=$(oom); "$@" >&2; code=$?
if [ $code = 137 ] && [ "$before" != "$(oom)" ]; then
  echo "that machine ran out of memory meanwhile" >&2
fi
exit $code"""
_SSH_FAILED = 255
_SIGNALLED = 128
# sshd drops connections when more than ten knock at once (MaxStartups).
_KNOCK_AT_ONCE = 8
_AVOID_S = 60.0


class SshLauncher(ProcessLauncher):
    """One ssh connection per worker; a worker ends when its connection does.

    A worker goes to the host with the most room. A host that could not be reached, or whose worker
    was lost without a word, is avoided for a minute, if there are others. ssh must work without a
    password (keys, an agent), as the user's ssh configuration says.

    Args:
        hosts: Names as ssh takes them, with how many workers each is meant for (``{"a": 4,
            "b": 2}``), or a list of names (all alike), or the path of a file with a host and a
            count per line.
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
        self._room_by_host = _room_by_host(hosts)
        self._ssh, self._python, self._setup = tuple(ssh), python, setup
        self._environment = {**ONE_THREAD, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._host_by_worker: dict[str, str] = {}
        self._avoid_until: dict[str, float] = {}
        if shutil.which(self._ssh[0]) is None:
            raise ValueError(
                f"there is no {self._ssh[0]!r} on this machine: install OpenSSH's client"
            )

    @property
    def room(self) -> int:
        """How many workers the hosts have room for."""
        return sum(self._room_by_host.values())

    @property
    def towards(self) -> str:
        """Where the first host is, as ssh's configuration says."""
        host = next(iter(self._room_by_host))
        answer = subprocess.run(
            [*self._ssh, "-G", host],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
        )
        for line in answer.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
        raise ValueError(f"ssh does not know {host!r}: {answer.stderr.strip()}")

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        for order in orders:
            self._host_by_worker[order.worker] = self._choose_host()
            super().start([order])

    def _choose_host(self) -> str:
        used, now = Counter(self._host_by_worker.values()), time.monotonic()

        def burden(host: str) -> tuple[bool, float]:
            return now < self._avoid_until.get(host, 0.0), used[host] / self._room_by_host[host]

        return min(self._room_by_host, key=burden)

    def command(self, worker: str) -> list[str]:
        """What to run, here, for this worker."""
        host = self._host_by_worker[worker]
        options = [word for option in _OPTIONS for word in ("-o", option)]
        ssh = [*self._ssh, "-T", *options, host, self.remote_command()]
        wait_s = (Counter(self._host_by_worker.values())[host] - 1) // _KNOCK_AT_ONCE
        return ["sh", "-c", f'sleep {wait_s}; exec "$@"', "sh", *ssh] if wait_s else ssh

    def remote_command(self) -> str:
        """What to run there, in the user's own shell."""
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        worker = shlex.join(["env", *variables, self._python, "-m", "clusterenv", "worker"])
        start = f"exec sh -c '{_THERE}' sh {worker}"
        return f"{self._setup}\n{start}" if self._setup else start

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped, with its host."""
        return {
            worker: self._at(host, worker, how)
            for worker, how in super().status().items()
            # None: it has been stopped meanwhile, by another thread.
            if (host := self._host_by_worker.get(worker)) is not None
        }

    def _at(self, host: str, worker: str, how: Status) -> Status:
        if not how.ended:
            return Status(ended=False, reason=f"started on ssh host {host}")
        if how.reason:
            return Status(ended=True, reason=f"{how.reason} on ssh host {host}")
        self._avoid(host)
        said = self.logs(worker).strip().rpartition("\n")[2]
        return Status(
            ended=True, reason=f"ssh to host {host} failed: {said or 'it does not say why'}"
        )

    def _status(self, code: int | None) -> Status:
        if code is None:
            return Status(ended=False)
        if code == _SSH_FAILED:
            return Status(ended=True)
        return Status(
            ended=True, reason=how_it_ended(_SIGNALLED - code if code > _SIGNALLED else code)
        )

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
        for worker, how in self.status().items():
            if worker in workers and not how.ended and not grace_s:
                self._avoid(self._host_by_worker[worker])
        super().stop(workers, grace_s)
        for worker in workers:
            self._host_by_worker.pop(worker, None)

    def _avoid(self, host: str) -> None:
        self._avoid_until[host] = time.monotonic() + _AVOID_S


def _room_by_host(hosts: Mapping[str, int] | Sequence[str] | Path) -> dict[str, int]:
    if isinstance(hosts, str):
        raise TypeError(f"hosts={hosts!r}: give a list of names, a dict with counts, or a Path")
    if isinstance(hosts, Path):
        room = _read_hosts(hosts)
    else:
        room = dict(hosts) if isinstance(hosts, Mapping) else dict(Counter(hosts))
    if not room or any(count < 1 for count in room.values()):
        raise ValueError(f"hosts={hosts!r}: at least one host, and at least one worker on each")
    return room


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
