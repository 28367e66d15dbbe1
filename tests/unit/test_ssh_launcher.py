"""Which machine a host goes to, and how its end is told; ssh itself is a script here."""

import shutil
import time

import pytest
from msgspec.structs import replace

from clusterenv.host.plan import WorkerLimits
from clusterenv.launchers import ssh
from clusterenv.launchers.base import Order
from clusterenv.launchers.ssh import SshLauncher
from clusterenv.wire.invitation import Invitation
from tests.integration.polling import eventually

INVITATION = Invitation(
    "host-0.0",
    "tcp://a:1",
    "their key".ljust(40, "."),
    "our key".ljust(40, "."),
    "a secret".ljust(40, "."),
    30.0,
    WorkerLimits(1.0, 2.0, 3.0, 4),
)


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
    launcher.start([Order(f"host-{first + i}.0", INVITATION.to_bytes()) for i in range(count)])
    return [launcher._machine_by_host[f"host-{first + i}.0"] for i in range(count)]


def ended(launcher, host="host-0.0"):
    assert eventually(lambda: launcher.status()[host].ended)
    return launcher.status()[host].reason


def test_each_machine_gets_one_host(launch):
    launcher = launch(["a", "b", "c"])
    assert launcher.num_hosts == 3
    assert start(launcher, 3) == ["a", "b", "c"]


def test_a_replacement_goes_to_the_machine_of_the_host_that_was_lost(launch):
    launcher = launch(["a", "b", "c"], 'case "$host" in b) exit 3;; esac; sleep 600')
    start(launcher, 3)
    ended(launcher, "host-1.0")
    launcher.stop(["host-1.0"])
    assert start(launcher, 1, first=3) == ["b"]


@pytest.mark.parametrize(
    ("hosts", "per_host", "options"),
    [
        (["a", "b"], None, ["", ""]),
        ({"a": 8, "b": 8}, 8, [" --workers 8", " --workers 8"]),
        ({"a": 8, "b": 2}, None, [" --workers 8", " --workers 2"]),
    ],
    ids=["as many as cores", "all alike", "each its own"],
)
def test_a_machine_is_told_its_number_of_workers(launch, hosts, per_host, options):
    launcher = launch(hosts)
    assert launcher.workers_per_host == per_host
    for machine, option in zip("ab", options, strict=True):
        assert launcher.remote_command(machine).endswith(f"-m clusterenv host{option}")


def test_a_machine_that_ssh_cannot_reach_is_avoided_for_a_while(launch, monkeypatch):
    launcher = launch(
        ["a", "b"], 'case "$host" in a) echo no way there; exit 255;; esac; sleep 600'
    )
    assert start(launcher, 1) == ["a"]
    assert ended(launcher) == "ssh to host a failed: no way there"
    launcher.stop(["host-0.0"])
    assert start(launcher, 3, first=1) == ["b", "b", "b"]
    later = time.monotonic() + ssh._AVOID_S
    monkeypatch.setattr(ssh.time, "monotonic", lambda: later)
    assert launcher._choose_machine() == "a"


def test_a_machine_whose_host_had_to_be_given_up_is_avoided(launch):
    launcher = launch(["a", "b"])
    assert start(launcher, 2) == ["a", "b"]
    launcher.stop(["host-0.0"])
    assert start(launcher, 1, first=2) == ["b"]


def test_where_all_machines_are_in_doubt_all_are_used(launch):
    launcher = launch(["a", "b"])
    start(launcher, 2)
    launcher.stop(["host-0.0", "host-1.0"])
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
def test_the_end_of_a_host_is_told_with_its_machine(launch, script, reason):
    launcher = launch(["a"], script)
    start(launcher, 1)
    assert ended(launcher) == reason


def test_what_is_run_there_gets_the_invitation_and_the_environment_and_no_one_sees_it(
    launch, tmp_path
):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nread -r line; printf "%s\\n" "$line"; echo "$MINE $*"; kill -9 $$\n'
    )
    python.chmod(0o755)
    launcher = launch(
        ["a"],
        'exec sh -c "$command"',
        python=str(python),
        setup="MINE=1\nexport MINE",
        environment={"SAID": "it's; $HOME\nand € more"},
    )
    start(launcher, 1)
    assert ended(launcher) == "killed by SIGKILL on ssh host a"
    invitation, words, *_ = launcher.logs("host-0.0").splitlines()
    said = {"SAID": "it's; $HOME\nand € more"}
    assert Invitation.from_bytes(invitation.encode()) == replace(INVITATION, environment=said)
    assert words == "1 -m clusterenv host"
    assert not [word for word in launcher.command("host-0.0") if "SAID" in word]


def test_no_more_than_eight_knock_at_a_host_at_once(launch):
    launcher = launch(["a"], "echo started; sleep 600")
    start(launcher, 9)
    assert launcher.command("host-0.0")[:2] == ["sh", "-c"]
    assert eventually(lambda: launcher.logs("host-8.0") == "started\n")


def test_a_hosts_file_has_comments_and_counts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\n\na 2\nb   # all its cores\n")
    assert ssh._read_hosts(file) == {"a": 2, "b": None}


@pytest.mark.parametrize("line", ["a two", "a 2 3", "a -1", "a 0"])
def test_a_line_of_a_hosts_file_that_says_nothing_is_named(tmp_path, line):
    file = tmp_path / "hosts"
    file.write_text(f"b 1\n{line}\n")
    with pytest.raises(ValueError, match='line 2: expected "NAME" or "NAME WORKERS", got'):
        SshLauncher(file)


@pytest.mark.parametrize("hosts", [[], {}])
def test_hosts_without_a_name_are_refused(hosts):
    with pytest.raises(ValueError, match="no name in it: give a list of names"):
        SshLauncher(hosts)


def test_a_machine_without_workers_is_refused():
    with pytest.raises(ValueError, match="workers of 'a'=0 must be at least 1"):
        SshLauncher({"a": 0})


def test_a_machine_that_is_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"has 'a' twice: .* for two workers say \{'a': 2\}"):
        SshLauncher(["a", "b", "a"])


@pytest.mark.parametrize("hosts", ["host1", 3, {"a", "b"}])
def test_what_is_no_list_is_refused(hosts):
    with pytest.raises(TypeError, match="give a list of names"):
        SshLauncher(hosts)


def test_a_missing_ssh_is_named():
    with pytest.raises(ValueError, match="no 'no-such-ssh' on this machine"):
        SshLauncher(["a"], ssh=("no-such-ssh",))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_the_address_of_the_first_host_is_that_of_the_ssh_configuration(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host a\n  HostName 127.0.0.5\n")
    assert SshLauncher(["a"], ssh=("ssh", "-F", str(config))).towards == "127.0.0.5"
