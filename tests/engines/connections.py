"""Small servers and clients, to see who can reach whom."""

import contextlib
import socket
import sys

CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as peer:
    print(peer.recv(100).decode())
"""
ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 5000), family=family)
print("ready", flush=True)
while True:
    peer, address = server.accept()
    peer.sendall(address[0].encode())
    while data := peer.recv(100):
        peer.sendall(data)
"""
"""Tells each client its address, and then repeats what it says."""
PORT = 5000


@contextlib.contextmanager
def echo_at(host, address):
    """An echo server on a host."""
    argv = [sys.executable, "-c", ECHO, address]
    process = host.popen(argv, stdout=-1, stderr=-2, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def dial(address, timeout_s=5.0):
    """Connect from the head; the socket, and the client's address as the server saw it."""
    peer = socket.create_connection((address, PORT), timeout=timeout_s)
    return peer, peer.recv(100).decode()


def dial_from(host, address, port=PORT, timeout_s=5.0):
    """Connect from a host; what it is told."""
    return host.run([sys.executable, "-c", CLIENT, address, str(port), str(timeout_s)]).strip()
