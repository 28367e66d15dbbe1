"""Hosts on a list of machines, reached by the system's own ssh."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from clusterenv.children import ChildProcess, in_words
from clusterenv.counts import check_count
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.parameters import (
    check_environment,
    names_valid_parameters,
)
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.wire.invitation import Invitation

_ASK_TIMEOUT_S = 10.0
_OPTIONS = (
    "BatchMode=yes",  # a question for a password would wait for ever
    "ConnectTimeout=20",
    "ServerAliveInterval=5",
    "ControlMaster=no",  # the end of one host's client must not be that of others
    "ClearAllForwardings=yes",
)
# A shell stays beside the host, because ssh reports exit codes but no signals. Standard input and
# output may be one socket there, and only the end of the head may cause a signal on it.
_THERE = """oom() { grep ^oom_kill /proc/vmstat; } 2>/dev/null
before=$(oom); "$@" >&2; code=$?
if [ $code = 137 ] && [ "$before" != "$(oom)" ]; then
  echo "that machine ran out of memory meanwhile" >&2
fi
exit $code"""
_SSH_FAILED = 255
_SIGNALLED = 128
# sshd drops connections when more than ten arrive at once (MaxStartups).
_KNOCK_AT_ONCE = 8
_AVOID_S = 60.0
_HOSTS_ADVICE = (
    'give a list of names (["a", "b"]), a dict with workers ({"a": 8, "b": 4}), or the Path of a '
    "file with a name and, if you like, its workers per line"
)


class SshLauncher(ProcessLauncher):
    """One ssh session and one host per machine; a host ends when its session does.

    A host that is lost is replaced on its own machine. A machine that could not be reached, or
    whose host was lost without a word, is avoided for a minute; meanwhile others run two. ssh must
    work without a password (keys, an agent), as configured by the user.

    Args:
        hosts: Names as ssh takes them, with how many workers each machine runs (``{"a": 8,
            "b": 4}``), or a list of names (one worker per core), or the path of a file with one
            name per line and, where not all cores are meant, a number after it.
        python: The Python to run there. By default the path of the head's own.
        setup: Shell commands to run first: ``"module load cuda"``, ``"source env/bin/activate"``.
        ssh: The ssh command and its options.
        environment: Environment variables for the workers. They travel with the key, and so are
            on no command line.
        log_dir: Where each host's output goes on this machine (``host-0.0.log`` …). By default it
            goes to unnamed files, and errors show the end of them.
    """

    trusted = False

    @names_valid_parameters
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
        self._workers_by_machine = _read_hosts(hosts)
        self.num_hosts = len(self._workers_by_machine)
        self._ssh, self._python, self._setup = tuple(ssh), python, setup
        self._environment = check_environment(environment)
        self._machine_by_host: dict[str, str] = {}
        self._avoid_until: dict[str, float] = {}
        if shutil.which(self._ssh[0]) is None:
            raise ValueError(
                f"there is no {self._ssh[0]!r} on this machine: install OpenSSH's client"
            )

    @property
    def workers_per_host(self) -> int | None:
        """The number of workers, if it is the same for all machines; else each is told its own."""
        numbers = set(self._workers_by_machine.values())
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def towards(self) -> str:
        """Where the first machine is, according to ssh's configuration."""
        machine = next(iter(self._workers_by_machine))
        answer = subprocess.run(
            [*self._ssh, "-G", machine],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
        )
        for line in answer.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
        reason = answer.stderr.strip() or "it gives no reason"
        raise ValueError(
            f"ssh knows no address of {machine!r}: {reason}; "
            f"check the name and ssh's configuration: {shlex.join([*self._ssh, '-G', machine])}"
        )

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""
        for order in orders:
            self._machine_by_host[order.host] = self._choose_machine()
            super().start([order])

    def _choose_machine(self) -> str:
        """The first without a host; for a replacement that is the lost host's machine."""
        used, now = Counter(self._machine_by_host.values()), time.monotonic()

        def burden(machine: str) -> tuple[bool, int]:
            return now < self._avoid_until.get(machine, 0.0), used[machine]

        return min(self._workers_by_machine, key=burden)

    def command(self, host: str) -> list[str]:
        """The command to run on this machine for this host."""
        machine = self._machine_by_host[host]
        options = [word for option in _OPTIONS for word in ("-o", option)]
        ssh = [*self._ssh, "-T", *options, machine, self.remote_command(machine)]
        wait_s = (Counter(self._machine_by_host.values())[machine] - 1) // _KNOCK_AT_ONCE
        return ["sh", "-c", f'sleep {wait_s}; exec "$@"', "sh", *ssh] if wait_s else ssh

    def remote_command(self, machine: str) -> str:
        """The command to run there, in the user's own shell."""
        # Unbuffered: what an env printed before it crashed must reach the log.
        host = ["env", "PYTHONUNBUFFERED=1", self._python, "-m", "clusterenv", "host"]
        workers = self._workers_by_machine[machine]
        if workers is not None:
            host += ["--workers", f"{workers}"]
        start = f"exec sh -c '{_THERE}' sh {shlex.join(host)}"
        return f"{self._setup}\n{start}" if self._setup else start

    def invitation(self, order: Order) -> bytes:
        """The first line of its standard input, which also carries the user's variables."""
        if not self._environment:
            return order.invitation
        invitation = Invitation.from_bytes(order.invitation)
        return msgspec.structs.replace(invitation, environment=self._environment).to_bytes()

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped, with its machine."""
        return {
            host: self._at(machine, host, how)
            for host, how in super().status().items()
            # None if another thread has stopped it meanwhile.
            if (machine := self._machine_by_host.get(host)) is not None
        }

    def _at(self, machine: str, host: str, how: Status) -> Status:
        if not how.ended:
            return Status(ended=False, reason=f"started on ssh host {machine}")
        if how.reason:
            return Status(ended=True, reason=f"{how.reason} on ssh host {machine}")
        self._avoid(machine)
        said = self.logs(host).strip().rpartition("\n")[2]
        return Status(
            ended=True, reason=f"ssh to host {machine} failed: {said or 'it does not say why'}"
        )

    def _status(self, child: ChildProcess) -> Status:
        code = child.exit_code()
        if code is None:
            return Status(ended=False)
        if code == _SSH_FAILED:
            return Status(ended=True)
        return Status(ended=True, reason=in_words(_SIGNALLED - code if code > _SIGNALLED else code))

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        for host, how in self.status().items():
            if host in hosts and not how.ended and not grace_s:
                self._avoid(self._machine_by_host[host])
        super().stop(hosts, grace_s)
        for host in hosts:
            self._machine_by_host.pop(host, None)

    def _avoid(self, machine: str) -> None:
        self._avoid_until[machine] = time.monotonic() + _AVOID_S


def _read_hosts(hosts: Mapping[str, int] | Sequence[str] | Path) -> dict[str, int | None]:
    """How many workers each machine runs, by name; None for one per core."""
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Mapping | Sequence | Path):
        raise TypeError(f"hosts={hosts!r}: {_HOSTS_ADVICE}")
    machines: dict[str, int | None] = {}
    for machine, workers in _pairs(hosts):
        if machine in machines:
            raise ValueError(
                f"hosts={hosts!r} has {machine!r} twice: one host runs all of a machine's workers; "
                f"for two workers say {{{machine!r}: 2}}"
            )
        machines[machine] = workers
    if not machines:
        raise ValueError(f"hosts={hosts!r} has no name in it: {_HOSTS_ADVICE}")
    return machines


def _pairs(hosts: Mapping[str, int] | Sequence[str] | Path) -> Iterator[tuple[str, int | None]]:
    if isinstance(hosts, Path):
        yield from _lines_of(hosts)
    elif isinstance(hosts, Mapping):
        for machine, workers in hosts.items():
            yield machine, check_count(f"hosts: workers of {machine!r}", workers)
    else:
        yield from ((machine, None) for machine in hosts)


def _lines_of(path: Path) -> Iterator[tuple[str, int | None]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or not all(word.isdigit() and int(word) for word in words[1:]):
            raise ValueError(
                f'{path}, line {number}: expected "NAME" or "NAME WORKERS", got {line!r}'
            )
        yield words[0], int(words[1]) if len(words) > 1 else None
