"""Hosts with an sshd each, reached with one ssh config file."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from tests.engines.harness.host import Host
from tests.engines.harness.namespaces import Hosts
from tests.engines.harness.packages import find, install
from tests.engines.harness.waiting import Daemon, accepts, run

UNREACHABLE = "unreachable"
START_S = 20.0
PORT = 22
SSHD_CONFIG = """
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/id.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
PrintMotd no
MaxStartups 100
SetEnv {variables}
Subsystem sftp internal-sftp
"""
ALIAS = """
Host {name}
    HostName {address}
"""
FOR_ALL = """
Host *
    Port {port}
    User root
    IdentityFile {folder}/id
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    BatchMode yes
    LogLevel ERROR
"""


class SshHosts:
    """Hosts ``host1``, ``host2``, ... for ``ssh -F config``, and one more that never answers."""

    unreachable = UNREACHABLE

    def __init__(self, count: int = 3) -> None:
        self.hosts = Hosts(count, prefix="host")
        self._daemons: dict[str, Daemon] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SshHosts:
        install("ssh", "sshd")
        with ExitStack() as stack:
            stack.enter_context(self.hosts)
            stack.callback(self._kill_daemons)
            self._write_keys()
            self._write_config()
            self._make_unreachable()
            for name in self.hosts:
                self.start_sshd(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def config(self) -> Path:
        """The file for ``ssh -F``."""
        return self._folder / "ssh_config"

    @property
    def names(self) -> list[str]:
        """The aliases of all hosts that answer."""
        return list(self.hosts)

    @property
    def head_address(self) -> str:
        """This machine's address that the hosts can reach."""
        return self.hosts.head_address

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cut(self, name: str) -> None:
        """Lose all that goes to or from this host; its processes keep running."""
        self.hosts.cut(name)

    def mend(self, name: str) -> None:
        """Undo `cut`."""
        self.hosts.mend(name)

    def kill_host(self, name: str) -> None:
        """End all that runs there, sshd too, as a power failure would."""
        self.hosts[name].kill_processes()
        self._daemons[name].kill()

    def start_sshd(self, name: str) -> None:
        """Start the host's sshd and wait until it takes connections."""
        host = self.hosts[name]
        argv = [find("sshd"), "-D", "-e", "-f", str(self._folder / "sshd_config")]
        sshd = host.daemon(argv, self._folder / f"{name}.sshd.log", os.environ)
        self._daemons[name] = sshd
        sshd.wait_until(lambda: accepts(host.address, PORT), f"sshd of {name}", START_S)

    def reset(self) -> None:
        """End all sessions, mend all links and bring all hosts back."""
        for name, daemon in self._daemons.items():
            self.mend(name)
            if daemon.process.poll() is not None or len(self.hosts[name].processes()) > 1:
                self.kill_host(name)
                self.start_sshd(name)

    @property
    def _folder(self) -> Path:
        return self.hosts.claim.folder

    def _kill_daemons(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()

    def _write_keys(self) -> None:
        for name in ("host_key", "id"):
            run([find("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", self._path(name)])

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _write_config(self) -> None:
        folder = self._folder
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        variables = [f'"{name}={value}"' for name, value in self.hosts.claim.env.items()]
        sshd_config = SSHD_CONFIG.format(folder=folder, port=PORT, variables=" ".join(variables))
        (folder / "sshd_config").write_text(sshd_config)
        key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        addresses = {name: host.address for name, host in self.hosts.items()}
        (folder / "known_hosts").write_text("".join(f"{at} {key}\n" for at in addresses.values()))
        aliases = {**addresses, UNREACHABLE: self.hosts.address(250)}
        lines = [ALIAS.format(name=name, address=at) for name, at in aliases.items()]
        self.config.write_text("".join(lines) + FOR_ALL.format(folder=folder, port=PORT))

    def _make_unreachable(self) -> None:
        # With a known hardware address the kernel sends on and on, instead of giving up at once.
        address, bridge = self.hosts.address(250), self.hosts.claim.bridge
        neighbour = [address, "lladdr", "02:ce:00:00:00:fa", "dev", bridge, "nud", "permanent"]
        run([find("ip"), "neigh", "replace", *neighbour])
