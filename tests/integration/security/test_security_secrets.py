"""Keys reach hosts, and nobody else: no command line, environment, log or repr shows them."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clusterenv import ClusterEnv
from clusterenv.host.plan import WorkerLimits
from clusterenv.launchers.attach import AttachLauncher
from clusterenv.launchers.base import Order
from clusterenv.launchers.local import LocalLauncher
from clusterenv.wire.head_socket import HeadSocket
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE, Invitation
from clusterenv.wire.messages import Enrol
from tests.environments.surroundings import Curious

ROOT = Path(__file__).parents[3]
HOST = [sys.executable, "-m", "clusterenv", "host"]


def start(arguments=(), **environment):
    return subprocess.Popen(
        [*HOST, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


class ByEnvironment(AttachLauncher):
    """As a scheduler that hands the invitation over in the environment of a job."""

    def __init__(self, folder):
        super().__init__(folder / "ticket", hosts=2, towards="127.0.0.1")
        self.processes = []

    def start(self, orders):
        super().start(orders)
        for order in orders:
            given = {ENVIRONMENT_VARIABLE: order.invitation.decode()}
            self.processes.append(start(**given))


class ByFile(AttachLauncher):
    """As somebody who starts hosts by hand."""

    def __init__(self, folder):
        super().__init__(folder / "ticket", hosts=2, towards="127.0.0.1")
        self.processes = []

    def start(self, orders):
        super().start(orders)
        assert stat.S_IMODE(self.key_file.stat().st_mode) == 0o600
        self.processes += [start(["--key-file", str(self.key_file)]) for _ in orders]


class ByInput(LocalLauncher):
    """As for hosts that are processes of this machine."""

    def __init__(self, folder):
        super().__init__(hosts=2, log_dir=folder / "logs")
        self.processes = []


@pytest.fixture
def secrets(monkeypatch):
    """The secret keys of all invitations, filled as they are made."""
    made, invite = [], HeadSocket.invite

    def record(self, *arguments, **keywords):
        invitation = invite(self, *arguments, **keywords)
        made.append(invitation.secret_key.encode())
        return invitation

    monkeypatch.setattr(HeadSocket, "invite", record)
    return made


@pytest.mark.parametrize("kind", [ByInput, ByEnvironment, ByFile])
def test_a_key_is_not_where_env_code_or_other_users_look(kind, tmp_path, secrets, caplog):
    caplog.set_level(logging.DEBUG)
    launcher = kind(tmp_path)
    envs = ClusterEnv([Curious] * 2, num_workers=2, launcher=launcher)
    try:
        envs.reset(seed=1)
        seen = b"".join(envs.call("seen"))
        seen += "".join(map(launcher.logs, ["host-0.0", "host-1.0"])).encode()
        everyone = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        seen += b"\n".join(_read(path) for path in everyone)
    finally:
        envs.close()
        said = b"".join(process.communicate(timeout=30)[0] for process in launcher.processes)
    assert b"clusterenv" in seen
    assert len(secrets) >= 2
    for secret in secrets:
        assert secret not in seen
        assert secret not in said
        assert secret.decode() not in caplog.text
    assert not (tmp_path / "ticket").exists()


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_repr_shows_no_key():
    limits = WorkerLimits(1.0, 1.0, 1.0, 1)
    keys = {"server_key": "server", "public_key": "public", "secret_key": "SECRET"}
    invitation = Invitation("host-0.0", "tcp://x:1", **keys, lease_s=1.0, limits=limits)
    data = invitation.to_bytes()
    assert b"SECRET" in data
    for value in (invitation, Order("host-0.0", data), Enrol(data)):
        assert "SECRET" not in repr(value) + str(value)


def test_a_ticket_that_others_can_read_is_refused(tmp_path):
    ticket = tmp_path / "ticket"
    ticket.write_text("{}")
    ticket.chmod(0o644)
    output, _ = start(["--key-file", str(ticket)]).communicate(timeout=60)
    assert b"can be read by others: chmod 600" in output
