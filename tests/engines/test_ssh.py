"""Hosts that are reached by ssh: the contract, where they go, what errors say."""

import importlib
import os
import shutil
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from clusterenv import ClusterEnv, Limits, Network
from clusterenv.errors import StartupError
from tests.engines import parity
from tests.engines.checked_runs import LEASE_S, gone, hosts_on
from tests.environments.vectors import actions_for
from tests.environments.walks import Placed, Troubled

SLACK_S = 3.0
NUM_ENVS = 4
# Nobody answers questions for names there.
QUICK_NAMES = {"RES_OPTIONS": "timeout:1 attempts:1"}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("case", parity.CASES)
def test_the_numbers_are_those_of_sync_vector_env(case, ssh_launcher):
    parity.assert_parity(lambda: ssh_launcher({"host1": 1, "host2": 2}), case)


def test_hosts_get_as_many_workers_as_the_file_says(ssh_cluster, ssh_hosts, tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text("# the small one first\nhost2 1\nhost3 3\n")
    with ssh_cluster(file) as envs:
        # One session and one host per machine; slots are dealt in proportion to workers.
        assert Counter(envs.call("host")) == {"host2": 1, "host3": 3}
        assert envs.call("host")[0] == "host2"
        assert len(set(envs.call("pid"))) == 4
        assert [len(hosts_on(ssh_hosts[name])) for name in ssh_hosts.names] == [0, 1, 1]


def test_variables_reach_the_workers_and_no_command_line(ssh_launcher, ssh_hosts):
    launcher = ssh_launcher(["host1"], environment={"API_KEY": "it's a secret; $HOME"})
    with all_command_lines() as seen, ClusterEnv([Telling], launcher=launcher) as envs:
        assert envs.call("tell", "API_KEY") == ("it's a secret; $HOME",)
    assert any("clusterenv\0host" in line for line in seen)
    assert [line for line in seen if "a secret" in line] == []


@contextmanager
def all_command_lines():
    """Every command line that anybody can read meanwhile, from the first moment."""
    seen, over = set(), threading.Event()

    def look():
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_text(errors="replace"))
            over.wait(0.01)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


class Telling(Placed):
    """Tells what is in its worker's environment."""

    def tell(self, name):
        return os.environ.get(name)


def test_an_unreachable_host_is_named_with_the_words_of_ssh(ssh_cluster, ssh_hosts):
    with pytest.raises(StartupError) as caught:
        ssh_cluster(["host1", ssh_hosts.unreachable])
    assert f"ssh to host {ssh_hosts.unreachable} failed: ssh: connect to" in str(caught.value)
    assert "timed out" in str(caught.value)
    assert gone([ssh_hosts["host1"]], SLACK_S)


def test_a_python_that_is_not_there_is_named(ssh_launcher):
    with pytest.raises(StartupError, match=r"exit code 127 on ssh host host1(.|\n)*/no/python"):
        ClusterEnv([Placed], launcher=ssh_launcher(["host1"], python="/no/python"))


def test_the_reason_why_a_host_does_not_reach_the_head_is_told_at_the_head(ssh_launcher):
    one = ssh_launcher(["host1"], environment=QUICK_NAMES)
    with pytest.raises(StartupError, match=r"no head at tcp://no\.such\.host(.|\n)*name"):
        ClusterEnv(
            [Placed],
            launcher=one,
            network=Network(advertise_host="no.such.host.invalid"),
            limits=Limits(lease_s=1.0),
        )


def shout():
    sys.stdout.write("a lot of noise\n" * 20_000)
    sys.stderr.write("and more\n" * 20_000)


def test_an_env_that_prints_much_does_no_harm(ssh_cluster):
    loud = partial(Troubled, shout)
    limits = Limits(lease_s=LEASE_S, max_restarts_per_minute=0)
    with ssh_cluster(makers=[loud] * NUM_ENVS, limits=limits) as envs:
        envs.reset(seed=0)
        for _ in range(5):
            envs.step(actions_for(NUM_ENVS))


@pytest.fixture
def ssh_on_path(ssh_hosts, tmp_path, monkeypatch):
    """The system's ssh knows the hosts."""
    file = tmp_path / "ssh"
    file.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {ssh_hosts.config} "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))


def test_an_example_trains_over_ssh_by_one_argument(ssh_on_path, ssh_hosts, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("HOSTS", ",".join(ssh_hosts.names))
    ppo = importlib.import_module("ppo")
    sizes = {"num_envs": 6, "num_steps": 64, "total_steps": 768}
    settings = {"update_epochs": 1, "num_minibatches": 4, "eval_episodes": 3, "out": tmp_path}
    assert ppo.main(ppo.Args(env_id="CartPole-v1", launcher="ssh", **sizes, **settings)) > 0
