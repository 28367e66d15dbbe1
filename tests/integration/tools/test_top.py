"""`python -m clusterenv top` shows a running head, to its own user only."""

import os
import pickle
import pty
import select
import socket
import subprocess
import sys
import termios
from functools import partial

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from clusterenv import ClusterEnv, LocalLauncher
from clusterenv.policies.copy import PolicyCopy
from clusterenv.status.channel import Run, fetch, fetch_showing, runs
from clusterenv.tools.bench_policy import bench_policy
from tests.environments.vectors import actions_for, cluster, walks
from tests.integration.heads import ROOT, HeadScript
from tests.integration.polling import eventually

RUNNING = """
import torch
from clusterenv import AdaptiveSync
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        return torch.distributions.Categorical(logits=self.layer(x))
envs = ClusterEnv("CartPole-v1", num_envs=4, num_workers=2, sync=AdaptiveSync(threshold=1e-4))
module = Module()
print(envs.run_id, flush=True)
for number in range(10 ** 6):
    envs.rollout(module, 8)
    with torch.no_grad():
        module.layer.weight += 0.05
    if number == 3:
        say("running")
"""


def top(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "clusterenv", "top", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
        **options,
    )


@pytest.fixture
def running(tmp_path):
    """A head that trains, and the id of its run."""
    with HeadScript(tmp_path, RUNNING) as head:
        head.wait_for("running")
        yield head, head.output.split()[0]


def acting(envs):
    return bench_policy(envs.single_observation_space, envs.single_action_space, 4)


def is_listed(run):
    return any(one.id == run for one in runs())


def test_a_run_can_be_watched_from_another_process_and_leaves_nothing(running):
    head, run = running
    shown = top(run, "--once")
    assert shown.returncode == 0, shown.stderr
    title, _, *rows = shown.stdout.splitlines()
    assert title.startswith(f"run {run} ")
    assert f"pid {head.process.pid}" in title
    assert "1 host  2 workers  4 envs" in title
    assert " 0 steps/s" not in title
    assert [row.split()[0] for row in rows[:3]] == ["host-0.0", "worker-0.0", "worker-1.0"]
    assert socket.gethostname() in rows[0]
    assert "first 1" in rows[-1]
    (listed,) = [line for line in top("--list").stdout.splitlines() if line.startswith(run)]
    sizes = "1 host  2 workers  4 envs of CartPole-v1"
    assert listed == f"{run}  pid {head.process.pid}  {sizes}  head.py sign"
    # By the pid as well, and the beginning of the id.
    assert top(str(head.process.pid), "--once").stdout.startswith(f"run {run} ")
    head.process.kill()
    head.process.wait()
    assert eventually(lambda: not is_listed(run))
    gone = top(run, "--once")
    assert gone.returncode == 1
    assert "clusterenv top: no run" in gone.stderr


def test_q_ends_the_live_view_and_leaves_the_terminal_as_it_was(running):
    pytest.importorskip("rich")
    _, run = running
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "clusterenv", "top", run, "--every", "60"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", "LINES": "40"}
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    # `setsid --ctty` gives it that terminal, as a shell would.
    watching = subprocess.Popen(["setsid", "--ctty", "--wait", *command], env=env, **terminal)
    shown = b""
    while b"q quits" not in shown:
        assert select.select([ours], [], [], 60.0)[0], shown
        shown += os.read(ours, 10_000)
    os.write(ours, b"xq")
    assert watching.wait(30) == 0
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: another user needs root")
def test_another_user_sees_nothing(running):
    head, run = running
    # The whole of what a stranger can do: connect to the socket's name, which is no secret.
    stranger = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(5);"
        f"s.connect('\\0clusterenv/{os.geteuid()}/{run}/{head.process.pid}');"
        "print(len(s.recv(100)))"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env", "python3", "-c", stranger],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    if "No such file" in done.stderr:
        pytest.skip("NOT TESTED: no Python in /usr/bin that another user could run")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
    assert fetch(Run(run, head.process.pid)) is not None


def rows_of(status):
    return [host.rows for host in status.hosts]


def test_steps_and_losses_are_seen():
    with cluster(walks(4)) as envs:
        run = Run(envs.run_id, os.getpid())
        (host,) = fetch(run).hosts
        assert (host.name, host.state, host.slots, host.pid) == ("host-0.0", "ready", 4, run.pid)
        assert [worker.state for worker in host.workers] == ["ready", "ready"]
        envs.reset(seed=0)
        before = rows_of(fetch(run))
        for number in range(5):
            envs.step(actions_for(4, number))
        assert rows_of(fetch(run)) == [before[0] + 20]
        pid = fetch(run).hosts[0].workers[1].pid
        os.kill(pid, 9)
        for number in range(3):
            envs.step(actions_for(4, number))
        second = fetch(run).hosts[0].workers[1]
        assert (second.name, second.restarts) == ("worker-1.1", 1)
        assert second.pid not in (0, pid)
    assert fetch(run) is None
    assert not is_listed(run.id)


@pytest.mark.parametrize("hosts", [None, 2])
def test_every_row_is_counted(hosts):
    launcher = LocalLauncher(hosts=hosts)
    with ClusterEnv("CartPole-v1", 4, 2, launcher=launcher, batch_size=2) as envs:
        run, policy = Run(envs.run_id, os.getpid()), acting(envs)
        envs.reset(seed=0)
        envs.rollout(policy, 3)
        assert sum(rows_of(fetch(run))) == 4 + 12
        envs.async_reset(seed=0)
        for _ in range(6):
            *_, info = envs.recv()
            envs.send(np.zeros(2, np.int64), info["env_id"])
        envs.reset(seed=0)
        assert sum(rows_of(fetch(run))) == 4 + 12 + (4 + 12) + 4
        envs.step(policy)
        assert sum(rows_of(fetch(run))) == 40


def test_hosts_of_their_own_are_seen():
    with ClusterEnv("CartPole-v1", 4, 2, launcher=LocalLauncher(hosts=2)) as envs:
        run = Run(envs.run_id, os.getpid())
        envs.rollout(acting(envs), 3)
        hosts = fetch(run).hosts
        assert [host.name for host in hosts] == ["host-0.0", "host-1.0"]
        assert [host.machine for host in hosts] == [socket.gethostname()] * 2
        assert [(host.slots, host.held, host.pulls) for host in hosts] == [(2, 1, 1)] * 2
        assert len({os.getpid(), *(host.pid for host in hosts)}) == 3
        assert [len(host.workers) for host in hosts] == [1, 1]
        os.kill(hosts[1].pid, 9)
        envs.reset(seed=0)
        assert eventually(lambda: fetch(run).hosts[1].state == "ready")
        second = fetch(run).hosts[1]
        assert (second.name, second.restarts) == ("host-1.1", 1)


def test_a_run_of_callables_is_shown_by_their_names():
    def make():
        return CartPoleEnv()

    several = [CartPoleEnv, partial(CartPoleEnv, render_mode=None), make]
    name = "test_a_run_of_callables_is_shown_by_their_names.make"
    for envs_given, shown in [(several[:2], "CartPoleEnv"), (several, "CartPoleEnv and 1 more")]:
        with ClusterEnv(envs_given, launcher="in-process", num_workers=1) as envs:
            assert fetch(Run(envs.run_id, os.getpid())).env == shown
    with ClusterEnv(make, num_envs=2, launcher="in-process", num_workers=1) as envs:
        assert fetch(Run(envs.run_id, os.getpid())).env == name


def test_episodes_losses_and_warnings_are_seen():
    with ClusterEnv("CartPole-v1", 4, 2, batch_size=2) as envs:
        run = Run(envs.run_id, os.getpid())
        assert fetch(run).env == "CartPole-v1"
        envs.reset(seed=0)
        for _ in range(40):  # nobody keeps a pole up like that
            envs.step(np.zeros(4, np.int64))
        status = fetch(run)
        assert status.episodes >= 8
        assert {one.slot for one in status.recent_episodes} == {0, 1, 2, 3}
        # Each step of CartPole is worth 1.
        assert all(one.total_reward == one.length > 5 for one in status.recent_episodes)
        os.kill(status.hosts[0].workers[1].pid, 9)
        for _ in range(3):
            envs.step(np.zeros(4, np.int64))
        status = fetch(run)
        (loss,) = status.losses
        assert (loss.worker, loss.slots) == ("worker-1.0", 2)
        assert "worker-1.0" in status.warnings[0].text
        assert [worker.first_slot for worker in status.hosts[0].workers] == [0, 2]
        counted = status.episodes
        envs.reset(seed=0)
        rollout = envs.rollout(acting(envs), 64)
        assert fetch(run).episodes == counted + len(rollout.episodes.slots)


def test_nobody_counts_the_episodes_of_steps_while_nobody_looks():
    with ClusterEnv("CartPole-v1", 2, 1) as envs:
        run = Run(envs.run_id, os.getpid())
        envs.reset(seed=0)
        for _ in range(30):
            envs.step(np.zeros(2, np.int64))
        assert fetch(run).episodes == 0


def test_an_episode_can_be_played_elsewhere_with_the_newest_weights():
    with ClusterEnv("CartPole-v1", 4, 2) as envs:
        run, policy = Run(envs.run_id, os.getpid()), acting(envs)
        showing, weights = fetch_showing(run, 3)
        assert (showing.slot, showing.version, weights) == (3, 0, b"")
        envs.publish(policy)
        showing, weights = fetch_showing(run, 3)
        assert showing.version == 1
        copy = PolicyCopy(pickle.loads(showing.policy), showing.layout)
        copy.take(1, weights)
        for name, array in policy.weights().items():
            np.testing.assert_array_equal(copy.policy.weights()[name], array)
        (env,) = pickle.loads(showing.backend).build((3,))
        assert env.observation_space == envs.single_observation_space
        env.close()
        assert fetch_showing(run, 4) is None
    assert fetch_showing(run, 3) is None
