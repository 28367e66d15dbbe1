"""Which host a worker goes to, and how its end is told; ssh itself is a script here."""

import shutil
import time

import pytest

from clusterenv.launchers import ssh
from clusterenv.launchers.base import Order
from clusterenv.launchers.ssh import SshLauncher
from tests.integration.polling import eventually


@pytest.fixture
def fake_ssh(tmp_path):
    """A command in the place of ssh that runs `script`; its last two words are $host, $command."""

    def make(script):
        file = tmp_path / "ssh"
        find = 'while [ $# -gt 2 ]; do shift; done; host="$1" command="$2"\n'
        file.write_text(f"#!/bin/sh\n{find}{script}\n")
        file.chmod(0o755)
        return (str(file),)

    return make


@pytest.fixture
def launch(fake_ssh):
    launchers = []

    def make(hosts, script="read line; exec sleep 600", **kwargs):
        launchers.append(SshLauncher(hosts, ssh=fake_ssh(script), **kwargs))
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.stop(list(launcher._children))


def start(launcher, count, first=0):
    launcher.start([Order(f"worker-{first + i}.0", b"{}") for i in range(count)])
    return [launcher._host_by_worker[f"worker-{first + i}.0"] for i in range(count)]


def ended(launcher, worker="worker-0.0"):
    assert eventually(lambda: launcher.status()[worker].ended)
    return launcher.status()[worker].reason


def test_hosts_in_a_list_are_used_in_turn(launch):
    assert start(launch(["a", "b", "c"]), 5) == ["a", "b", "c", "a", "b"]


def test_a_host_with_more_room_gets_more_workers(launch):
    assert sorted(start(launch({"a": 3, "b": 1}), 4)) == ["a", "a", "a", "b"]


def test_a_replacement_goes_where_there_is_room(launch):
    launcher = launch({"a": 1, "b": 3})
    hosts = start(launcher, 4)
    launcher.stop([f"worker-{hosts.index('a')}.0"], grace_s=0.01)
    assert start(launcher, 1, first=4) == ["a"]


def test_a_host_that_ssh_cannot_reach_is_avoided_for_a_while(launch, monkeypatch):
    launcher = launch(
        ["a", "b"], 'case "$host" in a) echo no way there; exit 255;; esac; sleep 600'
    )
    assert start(launcher, 1) == ["a"]
    assert ended(launcher) == "ssh to host a failed: no way there"
    launcher.stop(["worker-0.0"])
    assert start(launcher, 3, first=1) == ["b", "b", "b"]
    later = time.monotonic() + ssh._AVOID_S
    monkeypatch.setattr(ssh.time, "monotonic", lambda: later)
    assert launcher._choose_host() == "a"


def test_a_host_whose_worker_had_to_be_given_up_is_avoided(launch):
    launcher = launch(["a", "b"])
    assert start(launcher, 2) == ["a", "b"]
    launcher.stop(["worker-0.0"])
    assert start(launcher, 1, first=2) == ["b"]


def test_where_all_hosts_are_in_doubt_all_are_used(launch):
    launcher = launch(["a", "b"])
    start(launcher, 2)
    launcher.stop(["worker-0.0", "worker-1.0"])
    assert start(launcher, 2, first=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "exit code 3 on ssh host a"),
        ("exit 137", "killed by SIGKILL on ssh host a"),
        ("exit 255", "ssh to host a failed: it does not say why"),
        ("kill -9 $$", "killed by SIGKILL on ssh host a"),
    ],
    ids=["exit", "signal there", "ssh failed", "signal here"],
)
def test_the_end_of_a_worker_is_told_with_its_host(launch, script, reason):
    launcher = launch(["a"], script)
    start(launcher, 1)
    assert ended(launcher) == reason


def test_what_is_run_there_gets_the_invitation_and_the_environment(launch, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nread line; echo "$line $MINE $SAID $*"; kill -9 $$\n')
    python.chmod(0o755)
    launcher = launch(
        ["a"],
        'exec sh -c "$command"',
        python=str(python),
        setup="MINE=1\nexport MINE",
        environment={"SAID": "it's; $HOME"},
    )
    start(launcher, 1)
    assert ended(launcher) == "killed by SIGKILL on ssh host a"
    assert launcher.logs("worker-0.0").startswith("{} 1 it's; $HOME -m clusterenv worker\n")


def test_no_more_than_eight_knock_at_a_host_at_once(launch):
    launcher = launch(["a"], "echo started; sleep 600")
    start(launcher, 9)
    assert launcher.command("worker-0.0")[:2] == ["sh", "-c"]
    assert eventually(lambda: launcher.logs("worker-8.0") == "started\n")


def test_a_hosts_file_has_comments_and_counts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\n\na 2\nb   # one worker\na 1\n")
    assert ssh._room_by_host(file) == {"a": 3, "b": 1}


@pytest.mark.parametrize("line", ["a two", "a 2 3", "a -1"])
def test_a_line_of_a_hosts_file_that_says_nothing_is_named(tmp_path, line):
    file = tmp_path / "hosts"
    file.write_text(f"b 1\n{line}\n")
    with pytest.raises(ValueError, match="line 2: expected a host and a count"):
        SshLauncher(file)


@pytest.mark.parametrize("hosts", [[], {}, {"a": 0}])
def test_hosts_without_room_are_refused(hosts):
    with pytest.raises(ValueError, match="at least one"):
        SshLauncher(hosts)


def test_a_single_name_is_no_list():
    with pytest.raises(TypeError, match="give a list of names"):
        SshLauncher("host1")


def test_a_missing_ssh_is_named():
    with pytest.raises(ValueError, match="no 'no-such-ssh' on this machine"):
        SshLauncher(["a"], ssh=("no-such-ssh",))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_the_address_of_the_first_host_is_that_of_the_ssh_configuration(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host a\n  HostName 127.0.0.5\n")
    assert SshLauncher(["a"], ssh=("ssh", "-F", str(config))).towards == "127.0.0.5"
