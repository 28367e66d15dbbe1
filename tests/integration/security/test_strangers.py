"""Who has no key of this run gets no message through, and does not disturb it."""

import os
import socket
import time
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from clusterenv import ClusterEnv, LocalLauncher
from clusterenv.protocol.message import encode
from clusterenv.wire.invitation import Invitation
from clusterenv.wire.messages import CannotStart, Warned
from tests import inside
from tests.environments.vectors import actions_for, oracle_of, walks
from tests.equality import assert_same
from tests.integration.polling import eventually, kill

NUM_ENVS = 4
LISTEN_S = 1.0
# Each would show at the head at once, had it come from a host.
MESSAGES = [
    encode(Warned("worker-0.0", "UserWarning", "from a stranger")),
    encode(CannotStart("from a stranger")),
    b"garbage",
]
GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1" + b"NULL".ljust(20, b"\0") + b"\0" * 32


class Recorder(LocalLauncher):
    """Remembers the invitations."""

    def __init__(self, hosts=2):
        super().__init__(hosts)
        self.invitations = {}

    def start(self, orders):
        for order in orders:
            self.invitations[order.host] = Invitation.from_bytes(order.invitation)
        super().start(orders)


def cluster(launcher, num_envs=NUM_ENVS):
    return ClusterEnv(walks(num_envs), num_workers=launcher.num_hosts, launcher=launcher)


@pytest.fixture(scope="module")
def run():
    """Live envs on two hosts, and the launcher that knows their invitations."""
    launcher = Recorder()
    with cluster(launcher) as envs:
        yield envs, launcher


@contextmanager
def undisturbed(envs):
    """Run the body between steps that must give the right numbers."""
    oracle = oracle_of(NUM_ENVS)
    assert_same(envs.reset(seed=1), oracle.reset(seed=1))
    yield
    for number in range(20):
        actions = actions_for(NUM_ENVS, number)
        assert_same(envs.step(actions), oracle.step(actions))


def address_of(envs):
    parts = urlsplit(inside.head_address(envs))
    return parts.hostname, parts.port


def is_let_in(invitation, **keys):
    """Send messages as a peer with these CURVE keys; whether the handshake succeeded."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.set(zmq.LINGER, 0)
        for name, key in keys.items():
            peer.set(getattr(zmq, name), key.encode())
        monitor = peer.get_monitor_socket()
        with closing(monitor):
            peer.connect(invitation.address)
            for message in MESSAGES:
                peer.send(message)
            succeeded = _handshake_succeeds(monitor)
            peer.disable_monitor()
        return succeeded


def _handshake_succeeds(monitor):
    deadline = time.monotonic() + LISTEN_S
    while monitor.poll(max(0, 1000 * (deadline - time.monotonic()))):
        if recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return True
    return False


def keys_of(invitation):
    return {
        "CURVE_SERVERKEY": invitation.server_key,
        "CURVE_PUBLICKEY": invitation.public_key,
        "CURVE_SECRETKEY": invitation.secret_key,
    }


def fresh_keys():
    public, secret = zmq.curve_keypair()
    return {"CURVE_PUBLICKEY": public.decode(), "CURVE_SECRETKEY": secret.decode()}


@pytest.mark.parametrize(
    "garbage",
    [os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", GREETING + os.urandom(200), b""],
    ids=["noise", "http", "zmtp", "silence"],
)
def test_garbage_on_the_port_does_not_disturb_the_run(garbage, run):
    envs, _ = run
    with undisturbed(envs):
        strangers = [socket.create_connection(address_of(envs), 5.0) for _ in range(5)]
        for stranger in strangers:
            stranger.sendall(garbage)
    for stranger in strangers:
        stranger.close()


def test_the_keys_of_a_host_would_let_a_peer_in(run):
    """Shows that the tests below would notice."""
    _, launcher = run
    invitation = launcher.invitations["host-0.0"]
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.set(zmq.LINGER, 0)
        for name, key in keys_of(invitation).items():
            peer.set(getattr(zmq, name), key.encode())
        monitor = peer.get_monitor_socket()
        with closing(monitor):
            peer.connect(invitation.address)
            assert _handshake_succeeds(monitor)
            peer.disable_monitor()


def test_a_peer_without_keys_is_not_let_in(run):
    envs, launcher = run
    with undisturbed(envs):
        assert not is_let_in(launcher.invitations["host-0.0"])


def test_a_peer_with_keys_of_its_own_is_not_let_in(run):
    envs, launcher = run
    invitation = launcher.invitations["host-0.0"]
    with undisturbed(envs):
        keys = fresh_keys() | {"CURVE_SERVERKEY": invitation.server_key}
        assert not is_let_in(invitation, **keys)


def test_a_peer_that_does_not_know_the_heads_key_is_not_let_in(run):
    envs, launcher = run
    invitation = launcher.invitations["host-0.0"]
    with undisturbed(envs):
        keys = keys_of(invitation) | {"CURVE_SERVERKEY": fresh_keys()["CURVE_PUBLICKEY"]}
        assert not is_let_in(invitation, **keys)


def test_a_host_of_another_run_is_not_let_in(run):
    envs, launcher = run
    other = Recorder(hosts=1)
    with cluster(other, 1), undisturbed(envs):
        mine, theirs = (one.invitations["host-0.0"] for one in (launcher, other))
        keys = keys_of(theirs) | {"CURVE_SERVERKEY": mine.server_key}
        assert not is_let_in(mine, **keys)


def test_a_host_that_was_replaced_is_not_let_in_again():
    launcher = Recorder()
    with cluster(launcher) as envs:
        envs.reset(seed=1)
        kill(inside.host_pid(envs, "host-1.0"))
        assert eventually(lambda: is_replaced(envs))
        old = launcher.invitations["host-1.0"]
        with undisturbed(envs):
            assert not is_let_in(old, **keys_of(old))


def is_replaced(envs):
    envs.step(actions_for(NUM_ENVS))
    return inside.host_names(envs) == ["host-0.0", "host-1.1"]


def test_the_port_is_open_on_the_loopback_interface_only(run):
    envs, _ = run
    host, _ = address_of(envs)
    assert host == "127.0.0.1"


def test_no_secret_is_on_a_command_line_or_in_an_environment(run):
    envs, launcher = run
    workers = set(envs.call("pid"))
    hosts = {psutil.Process(pid).ppid() for pid in workers}
    for pid in workers | hosts:
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert b"clusterenv" in seen
        for invitation in launcher.invitations.values():
            assert invitation.secret_key.encode() not in seen
