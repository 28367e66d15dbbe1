"""Who has no key costs the head little: not its memory, not its descriptors, not its time."""

import os
import random
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import psutil
import pytest
import zmq

from clusterenv.protocol.message import encode
from clusterenv.wire.chunks import CHUNK_BYTES
from clusterenv.wire.host_socket import Contact, HostSocket
from clusterenv.wire.messages import CannotStart, RowsMade
from tests import inside
from tests.environments.vectors import actions_for, oracle_of
from tests.equality import assert_same
from tests.integration.polling import eventually
from tests.integration.security.liars import NUM_ENVS, assert_nobody_was_replaced, ran_with
from tests.integration.security.test_strangers import fresh_keys

GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
IDLE = 800
HOLD = """
import socket, sys
strangers = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(IDLE)]
print("connected", flush=True)
sys.stdin.read()
""".replace("IDLE", str(IDLE))


@pytest.fixture(scope="module")
def run():
    """Live envs and the launcher that has their invitations; nobody lies."""
    with ran_with(lambda message, frames: None) as envs:
        yield envs, inside.launcher_of(envs)


@contextmanager
def undisturbed(envs, megabytes=30):
    """The right numbers before, after and in spite of the body, and no memory lost to it."""
    oracle = oracle_of(NUM_ENVS)
    assert_same(envs.reset(seed=1), oracle.reset(seed=1))
    before = psutil.Process().memory_info().rss
    yield
    for number in range(20):
        actions = actions_for(NUM_ENVS, number)
        assert_same(envs.step(actions), oracle.step(actions))
    assert psutil.Process().memory_info().rss - before < megabytes * 1_000_000
    assert_nobody_was_replaced(envs)


def port_of(envs):
    return urlsplit(inside.head_address(envs)).port


def connect(envs):
    return socket.create_connection(("127.0.0.1", port_of(envs)), 5.0)


def pour(stranger, blob, times):
    """Send as much as the head takes; how many bytes that was."""
    stranger.settimeout(1.0)
    for number in range(times):
        try:
            stranger.sendall(blob)
        except OSError:
            return number * len(blob)
    return times * len(blob)


def test_a_stranger_cannot_make_the_head_hold_a_large_frame(run):
    envs, _ = run
    blob = bytes(1 << 20)
    with undisturbed(envs):
        strangers = [connect(envs) for _ in range(5)]
        for stranger in strangers:
            stranger.sendall(GREETING + b"\x06" + struct.pack(">Q", 1 << 29))
        poured = [pour(stranger, blob, 40) for stranger in strangers]
        # What it takes lies in the kernel's buffers.
        assert max(poured) < 20 << 20
    for stranger in strangers:
        stranger.close()


def test_a_frame_that_is_not_too_large_is_held_only_until_the_handshake_fails(run):
    envs, _ = run
    with undisturbed(envs):
        strangers = [connect(envs) for _ in range(20)]
        for stranger in strangers:
            stranger.sendall(GREETING + b"\x06" + struct.pack(">Q", CHUNK_BYTES))
            pour(stranger, bytes(CHUNK_BYTES), 1)
    for stranger in strangers:
        stranger.close()


def test_idle_connections_do_not_use_up_the_descriptors(run):
    envs, _ = run
    command = [sys.executable, "-c", HOLD, str(port_of(envs))]
    before = len(os.listdir("/proc/self/fd"))
    with undisturbed(envs):
        stranger = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert stranger.stdout.readline() == b"connected\n"
            held = lambda: len(os.listdir("/proc/self/fd")) - before  # noqa: E731
            # Sooner than the handshakes time out.
            assert eventually(lambda: held() < 300, 6.0), held()
            with newcomer(envs) as host:
                assert eventually(lambda: host.contact() is Contact.THERE)
        finally:
            stranger.communicate()


@contextmanager
def newcomer(envs):
    """A host that the head has invited and nobody has heard of."""
    host = HostSocket(inside.invite(envs, "host-9.0"))
    try:
        yield host
    finally:
        host.close()
        inside.revoke(envs, "host-9.0")


def noise(chance):
    """Bytes of a stranger: random, or a greeting and frames in which something is wrong."""
    message = bytearray(GREETING + b"\x04\x1a\x05HELLO" + chance.randbytes(60))
    for _ in range(chance.randrange(4)):
        message[chance.randrange(len(message))] = chance.randrange(256)
    return chance.choice([chance.randbytes(chance.randrange(1, 300)), bytes(message)])


def test_a_thousand_strangers_who_say_anything_do_not_disturb(run):
    envs, _ = run
    chance = random.Random(1)
    with undisturbed(envs):
        for _ in range(1_000):
            with connect(envs) as stranger:
                stranger.sendall(noise(chance))


def test_frames_of_a_peer_with_wrong_keys_are_not_taken_in(run):
    envs, launcher = run
    invitation = launcher.invitations["host-0.0"]
    keys = fresh_keys() | {"CURVE_SERVERKEY": invitation.server_key}
    with undisturbed(envs), zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.set(zmq.LINGER, 0)
        for name, key in keys.items():
            peer.set(getattr(zmq, name), key.encode())
        peer.connect(invitation.address)
        with suppress(zmq.Again):
            for number in range(900):
                peer.send_multipart([encode(RowsMade(number, None)), bytes(10_000)], zmq.NOBLOCK)
        time.sleep(0.5)


def test_a_host_cannot_speak_for_another(run):
    """The name comes with the key: whatever a peer calls itself, it is the host of its key."""
    envs, _ = run
    with undisturbed(envs), newcomer(envs) as impostor:
        impostor.socket.set(zmq.ROUTING_ID, b"host-0.0")
        impostor.socket.disconnect(impostor.socket.get(zmq.LAST_ENDPOINT))
        impostor.socket.connect(inside.head_address(envs))
        for epoch in range(50):
            impostor.send(RowsMade(epoch, None), [b""])
            impostor.send(CannotStart("it is broken"))
        assert eventually(lambda: impostor.contact() is not Contact.NOT_YET)
        time.sleep(0.2)


def test_a_stolen_key_is_of_no_use_while_its_owner_is_there(run):
    """Whoever speaks first with it stays; it is worth what its owner may say, and no more."""
    envs, launcher = run
    with undisturbed(envs):
        thief = HostSocket(launcher.invitations["host-1.0"])
        try:
            thief.send(RowsMade(1, (0, 1)), [b""])
            thief.send(CannotStart("it is broken"))
            assert eventually(lambda: thief.contact() is Contact.BROKEN)
        finally:
            thief.close()
