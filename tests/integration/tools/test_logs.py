"""`python -m clusterenv logs` shows what the workers of a running head have printed."""

import os
import socket
import subprocess
import sys

import pytest

from clusterenv import InProcessLauncher, LocalLauncher
from tests.environments import troubles
from tests.environments.printing import chatty
from tests.environments.vectors import actions_for, cluster, walks
from tests.integration.heads import ROOT
from tests.integration.polling import eventually

LAUNCHERS = {"shared memory": LocalLauncher(), "hosts behind sockets": LocalLauncher(hosts=1)}
PRINTED = "a step was made\n"


def command(*arguments):
    return [sys.executable, "-m", "clusterenv", "logs", *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def logs(*arguments):
    return subprocess.run(
        command(*arguments),
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )


def printing(launcher="local", **kwargs):
    makers = walks(4, 2, trouble=troubles.print_a_line, verb="step", at=None)
    return cluster(makers, launcher=launcher, **kwargs)


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_what_workers_printed_is_shown_with_their_names(launcher):
    with printing(launcher) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(actions_for(4))
        shown = logs(envs.run_id)
        assert (shown.returncode, shown.stdout) == (0, f"worker-1.0: {PRINTED}" * 2), shown.stderr
        assert logs(envs.run_id, "--tail", "1").stdout == f"worker-1.0: {PRINTED}"
        assert logs(envs.run_id, "--tail", "3").stdout == shown.stdout
        assert logs(envs.run_id, "--worker", "worker-1").stdout == PRINTED * 2
        silent = logs(envs.run_id, "--worker", "worker-0.0")
        assert (silent.returncode, silent.stdout) == (0, "")
        assert silent.stderr == "clusterenv logs: nothing printed yet\n"
        assert "nothing" not in shown.stderr
        missing = logs(envs.run_id, "--worker", "worker-7")
        assert missing.returncode == 1
        assert "no such worker; it has: worker-0.0 of host-0.0, worker-1.0" in missing.stderr


def test_workers_of_several_hosts_are_told_apart():
    with printing(LocalLauncher(hosts=2)) as envs:
        envs.reset(seed=0)
        envs.step(actions_for(4))
        assert logs(envs.run_id).stdout == f"host-1.0 worker-0.0: {PRINTED}"
        assert logs(envs.run_id, "--host", "host-0").stdout == ""


def test_a_log_with_a_name_is_shown_too(tmp_path):
    with printing(log_dir=tmp_path) as envs:
        envs.reset(seed=0)
        envs.step(actions_for(4))
        assert logs(envs.run_id).stdout == f"worker-1.0: {PRINTED}"


def test_logs_can_be_followed_over_replacements_until_the_run_ends(tmp_path):
    copy = tmp_path / "copy"
    with copy.open("w") as out, printing() as envs:
        envs.reset(seed=0)
        following = subprocess.Popen(
            command(envs.run_id, "--follow"), stdout=out, env=environment()
        )
        envs.step(actions_for(4))
        assert eventually(lambda: copy.read_text() == f"worker-1.0: {PRINTED}")
        os.kill(envs.workers[1].pid, 9)
        for _ in range(3):
            envs.step(actions_for(4))
        assert eventually(lambda: f"worker-1.1: {PRINTED}" in copy.read_text())
    assert following.wait(60) == 0


def test_logs_can_be_followed_though_they_are_cut(tmp_path):
    copy = tmp_path / "copy"
    with copy.open("w") as out, cluster(chatty(1, 20_000), num_workers=1) as envs:
        envs.reset(seed=0)
        following = subprocess.Popen(
            command(envs.run_id, "--follow"), stdout=out, env=environment()
        )
        for number in range(8):
            envs.step(actions_for(1, number))
        assert eventually(lambda: copy.stat().st_size > 100_000)
    assert following.wait(60) == 0
    lines = {line.removeprefix("worker-0.0: ") for line in copy.read_text().splitlines()}
    assert {line for line in lines if not line.startswith("[clusterenv: ")} == {"." * 99}


def test_threads_of_the_head_print_to_its_own_output():
    with printing(InProcessLauncher()) as envs:
        envs.reset(seed=0)
        shown = logs(envs.run_id)
        assert shown.returncode == 1
        assert "threads of the head" in shown.stderr


def test_hosts_elsewhere_are_named_with_where_to_look(monkeypatch):
    with printing() as envs:
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        shown = logs(envs.run_id)
        assert shown.returncode == 1
        (told,) = shown.stderr.splitlines()
        assert "host-0.0 runs on elsewhere, and its output cannot be read from here" in told
        assert "see host-0.0.log in that folder" in told


def test_without_a_run_it_says_so():
    missing = logs("no-such-run")
    assert missing.returncode == 1
    assert missing.stderr.startswith("clusterenv logs: no run")
