"""Hosts that come by themselves, with the ticket of the run."""

import os
import signal
import stat
import threading
import time

import msgspec
import pytest
import zmq

from clusterenv import ClusterEnv, Limits
from clusterenv.wire.invitation import Invitation
from tests import inside
from tests.engines import parity
from tests.engines.attaching import HandStarted, Joined
from tests.engines.checked_runs import Replay, gone, hosts_on
from tests.environments.walks import Placed
from tests.integration.heads import HeadScript
from tests.integration.polling import eventually, is_alive, kill, within

LEASE_S = 4.0
LONG_S = 30.0
# A tick of the host's lifeline and a busy machine.
SLACK_S = 3.0
NUM_ENVS = 4
LIMITS = Limits(lease_s=LEASE_S)


@pytest.fixture
def key_file(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    return folder / "run.key"


@pytest.fixture
def cluster(hosts, key_file):
    """Open walks on hosts that are started by hand on these machines; closed at the end."""
    opened = []

    def make(*names, key_file=key_file, limits=LIMITS):
        launcher = HandStarted(key_file, [hosts[name] for name in names])
        opened.append(ClusterEnv([Placed] * NUM_ENVS, launcher=launcher, limits=limits))
        return opened[-1], launcher

    yield make
    for envs in opened:
        envs.close(terminate=True)


@pytest.mark.parametrize("case", parity.CASES)
def test_the_numbers_are_those_of_sync_vector_env(case, hosts, key_file):
    launcher = HandStarted(key_file, [hosts["h1"], hosts["h2"]])
    parity.assert_parity(lambda: launcher, case, limits=LIMITS)
    assert [joined.wait() for joined in launcher.joined] == [0, 0]
    assert [path.suffix for path in key_file.parent.iterdir()] == [".log"] * 2


def test_a_run_waits_for_hosts_that_come_late(hosts, key_file):
    launcher = HandStarted(key_file, [hosts["h1"]], hosts=2)

    def come_late():
        assert eventually(lambda: launcher.joined)
        time.sleep(1.0)
        launcher.join(hosts["h2"])

    thread = threading.Thread(target=come_late)
    thread.start()
    with ClusterEnv([Placed] * 2, launcher=launcher, limits=LIMITS) as envs:
        assert sorted(envs.call("host")) == ["h1", "h2"]
    thread.join()


def test_a_spare_takes_over_and_who_crashed_is_the_next_spare(hosts, cluster):
    envs, launcher = cluster("h1", "h2")
    launcher.join(hosts["h3"])
    assert eventually(lambda: inside.num_spares(envs) == 1)
    replay = Replay(envs)
    replay.rollout()
    lost = envs.call("host").index("h2")
    kill(hosts_on(hosts["h2"])[0])
    replay.rollout_until(lambda: lost in replay.restarted)
    assert set(envs.call("host")) == {"h1", "h3"}
    assert eventually(lambda: inside.num_spares(envs) == 1)
    kill(hosts_on(hosts["h3"])[0])
    replay.rollout_until(lambda: replay.times_restarted(lost) == 2)
    assert set(envs.call("host")) == {"h1", "h2"}
    # A launcher is asked for a host before it hears who that is, though a spare was there.
    assert len(launcher.enrolments) == 4
    assert all(is_known for _, is_known in launcher.enrolments)


def test_a_worker_that_is_killed_is_its_hosts_business(cluster):
    envs, launcher = cluster("h1", "h2")
    replay = Replay(envs)
    processes = [joined.host for joined in launcher.joined]
    kill(envs.call("pid")[3])
    replay.rollout_until(lambda: 3 in replay.restarted)
    assert [joined.host for joined in launcher.joined] == processes
    assert not {0, 1} & set(replay.restarted)


def test_a_host_that_was_cut_off_fences_itself_and_joins_again(hosts, cluster):
    envs, launcher = cluster("h1", "h2")
    replay = Replay(envs)
    replay.rollout()
    lost = envs.call("host").index("h2")
    pid = launcher.joined[1].host
    hosts.cut("h2")
    mender = threading.Thread(target=mend_when_fenced, args=(hosts, pid))
    mender.start()
    within(60.0, lambda: replay.rollout_until(lambda: lost in replay.restarted))
    mender.join()
    assert set(envs.call("host")) == {"h1", "h2"}
    for _ in range(5):
        replay.rollout()
    assert launcher.joined[1].process.poll() is None


def mend_when_fenced(hosts, pid):
    assert eventually(lambda: not is_alive(pid), LEASE_S + SLACK_S)
    time.sleep(1.0)
    hosts.mend("h2")


def test_a_host_that_is_told_to_leave_hands_its_slots_to_a_spare(hosts, cluster):
    envs, launcher = cluster("h1", "h2", limits=Limits(lease_s=LEASE_S, max_restarts_per_minute=0))
    launcher.join(hosts["h3"])
    assert eventually(lambda: inside.num_spares(envs) == 1)
    replay = Replay(envs)
    leaver = launcher.joined[1]
    os.kill(leaver.process.pid, signal.SIGTERM)
    replay.rollout_until(lambda: replay.restarted)
    assert set(envs.call("host")) == {"h1", "h3"}
    assert leaver.wait() == 0


def test_a_host_ends_with_the_process_that_somebody_started(hosts, cluster):
    envs, launcher = cluster("h1", "h2")
    one, spare = launcher.joined[0], launcher.join(hosts["h3"])
    assert eventually(lambda: inside.num_spares(envs) == 1)
    # Places go to hosts in the order in which they come.
    there = zip(envs.call("host"), envs.call("pid"))
    pids = [one.host, spare.host, *(pid for host, pid in there if host == "h1")]
    assert len(pids) == 4
    for joined in (one, spare):
        kill(joined.process.pid)
    assert eventually(lambda: not any(map(is_alive, pids)), SLACK_S)


# Strangers.


def refused(host, ticket, folder, *options):
    """What a host with this ticket prints, which must not try for as long as the lease."""
    file = folder / "ticket"
    file.touch(0o600)
    file.write_bytes(ticket)
    began = time.monotonic()
    stranger = Joined(host, file, folder, *options)
    assert stranger.wait() == 1
    assert time.monotonic() - began < LONG_S
    return stranger.log


def test_a_key_that_is_forged_or_was_shown_around_is_refused_at_once(
    hosts, cluster, key_file, tmp_path
):
    envs, launcher = cluster("h1", "h2", limits=Limits(lease_s=LONG_S))
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    public, secret = (key.decode() for key in zmq.curve_keypair())
    ticket = Invitation.from_bytes(key_file.read_bytes())
    forged = msgspec.structs.replace(ticket, public_key=public, secret_key=secret)
    assert "refused the key" in refused(hosts["h3"], forged.to_bytes(), tmp_path)
    key_file.chmod(0o644)
    careless = launcher.join(hosts["h3"])
    assert careless.wait() == 1
    assert "can be read by others" in careless.log
    Replay(envs).rollout()


def test_two_heads_at_once_have_hosts_and_keys_of_their_own(hosts, cluster, key_file, tmp_path):
    other_key_file = key_file.with_name("other.key")
    one, first = cluster("h1", "h2")
    other, second = cluster("h1", "h2", key_file=other_key_file, limits=Limits(lease_s=LONG_S))
    replays = [Replay(one), Replay(other)]
    address = Invitation.from_bytes(key_file.read_bytes()).address
    log = refused(hosts["h3"], other_key_file.read_bytes(), tmp_path, "--head", address)
    assert f"the head at {address} refused the key: it belongs to another run" in log
    for replay in replays:
        replay.rollout()
    one.close()
    assert [joined.wait() for joined in first.joined] == [0, 0]
    replays[1].rollout()
    assert [joined.process.poll() for joined in second.joined] == [None, None]


def test_a_host_that_comes_after_the_run_is_told_that_nobody_is_there(hosts, cluster, key_file):
    envs, launcher = cluster("h1", "h2")
    ticket = key_file.read_bytes()
    envs.close()
    assert not key_file.exists()
    key_file.touch(0o600)
    key_file.write_bytes(ticket)
    late = launcher.join(hosts["h3"])
    assert late.wait() == 1
    assert f"for lease_s={LEASE_S:g}: [Errno 111] Connection refused" in late.log


HEAD = """
from clusterenv import AttachLauncher, Limits
launcher = AttachLauncher("{key_file}", hosts=2, towards="{towards}")
busy = partial(Troubled, troubles.{trouble}, at=2, sign=SIGN)
envs = ClusterEnv([Walk, busy], limits=Limits(lease_s={lease_s}), launcher=launcher)
envs.reset(seed=0)
envs.step(np.zeros((2, 2)))
envs.step(np.zeros((2, 2)))
"""


def test_nothing_is_left_on_any_host_when_the_head_is_killed(hosts, key_file, tmp_path):
    source = HEAD.format(
        key_file=key_file, towards=hosts["h1"].address, trouble="sleep_forever", lease_s=LEASE_S
    )
    with HeadScript(tmp_path, source) as head:
        assert eventually(key_file.exists, 30.0), head.report()
        joined = [Joined(hosts[name], key_file, key_file.parent) for name in ("h1", "h2", "h3")]
        head.wait_for_sign()
        kill(head.process.pid)
        # They end, apply again, and give up.
        assert gone(hosts.values(), 2 * LEASE_S + SLACK_S)
        assert [one.wait() for one in joined] == [1, 1, 1]
        assert all("no head at" in one.log for one in joined)
