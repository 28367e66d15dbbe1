"""`host --once`: one host, and exit code 0 when the head is gone or the run is over."""

import os
import subprocess
import sys

import pytest
import zmq

from clusterenv import ClusterEnv
from clusterenv.host.plan import WorkerLimits
from clusterenv.launchers.attach import AttachLauncher
from clusterenv.wire import host_main
from clusterenv.wire.invitation import TICKET, Invitation
from tests.environments.walks import Walk
from tests.integration.heads import HeadScript
from tests.integration.polling import kill


def start(key_file, *options):
    command = [sys.executable, "-m", "clusterenv", "host", "--key-file", str(key_file)]
    return subprocess.Popen(
        [*command, "--workers", "1", *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # As in a container: it leads its process group.
        start_new_session=True,
    )


class Pods(AttachLauncher):
    """Starts hosts as soon as the key file is there."""

    def start(self, orders):
        super().start(orders)
        self.processes = [start(self.key_file, "--once") for _ in orders]


def test_the_run_is_over(tmp_path):
    launcher = Pods(tmp_path / "key", hosts=2, towards="127.0.0.1")
    with ClusterEnv(Walk, 2, launcher=launcher) as envs:
        envs.reset(seed=0)
    for process in launcher.processes:
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said


HEAD = """
from clusterenv.launchers.attach import AttachLauncher
launcher = AttachLauncher(SIGN, towards="127.0.0.1")
envs = ClusterEnv(Walk, 1, launcher=launcher, limits=Limits(lease_s=2.0))
envs.reset(seed=0)
say("ready")
time.sleep(600)
"""


def test_the_head_is_gone(tmp_path):
    with HeadScript(tmp_path, HEAD) as head:
        head.wait_for_sign()
        process = start(head.sign, "--once")
        head.wait_for("ready")
        kill(head.process.pid)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "clusterenv host ends: " in said


@pytest.mark.parametrize(("options", "code"), [(["--once"], 0), ([], 1)])
def test_there_never_was_a_head(tmp_path, options, code):
    public, secret = (key.decode() for key in zmq.curve_keypair())
    limits = WorkerLimits(60.0, 60.0, 60.0, 3)
    ticket = Invitation(TICKET, "tcp://127.0.0.1:9", public, public, secret, 1.0, limits)
    key_file = tmp_path / "key"
    key_file.write_bytes(ticket.to_bytes())
    key_file.chmod(0o600)
    process = start(key_file, *options)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "no head at tcp://127.0.0.1:9 for lease_s=1" in said


@pytest.mark.parametrize(
    ("uid", "gids", "mode", "readable"),
    [
        (0, [0], 0o400, False),
        (0, [0], 0o440, True),
        (1000, [1000], 0o440, False),
        (1000, [1000], 0o460, True),
        (1000, [1000], 0o444, True),
        (1000, [2000], 0o440, True),
    ],
)
def test_a_key_that_is_handed_over_by_its_group_is_read_by_no_others(
    monkeypatch, uid, gids, mode, readable
):
    class Found:
        st_uid, st_gid, st_mode = 0, 1000 if uid else 0, mode

    monkeypatch.setattr(host_main.Path, "stat", lambda _: Found)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: gids[0])
    monkeypatch.setattr(os, "getgroups", lambda: gids)
    assert host_main._others_can_read(host_main.Path("key")) == readable
