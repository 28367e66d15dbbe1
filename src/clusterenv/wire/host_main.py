"""``python -m clusterenv host``: the one command that every launcher starts."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from clusterenv.descriptors import FOR_SOCKETS, make_room
from clusterenv.errors import ProtocolError
from clusterenv.host.starting import ProcessStarter
from clusterenv.host.workers import Workers
from clusterenv.launchers.attached import keep_attached
from clusterenv.launchers.base import PLACE_VARIABLE, cores
from clusterenv.lifelines import EXIT_HOST_GONE as EXIT_HEAD_GONE
from clusterenv.lifelines import end_with_input
from clusterenv.wire.addresses import numeric
from clusterenv.wire.applying import NoHeadError, apply
from clusterenv.wire.host_lifeline import HostLifeline
from clusterenv.wire.host_socket import HostSocket
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE, Invitation
from clusterenv.wire.messages import PROTOCOL_VERSION, Hello
from clusterenv.wire.serving import Service
from clusterenv.wire.versions import versions

_BY_HAND = "launchers start this command; by hand, pass the key file of the run: --key-file FILE"


def run_host(
    key_file: str | None = None,
    head: str | None = None,
    once: bool = False,
    workers: int | None = None,
) -> NoReturn:
    """Get the invitation, serve until the head says Close, and end."""
    if key_file is None:
        invitation, is_lifeline = _get_invitation()
        _run(invitation, workers, is_lifeline, EXIT_HEAD_GONE)
    advice = "copy the key file of the current run again"
    ticket = _parse(_read_key_file(Path(key_file)), key_file, advice)
    ticket = ticket if head is None else ticket.at(head)
    if not once:
        raise SystemExit(keep_attached(ticket.to_bytes(), workers))
    # Unlike others, the first process of a container does not end by default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _run(ticket, workers, input_is_lifeline=False, exit_without_head=0)
    except NoHeadError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(0) from None


def hello(workers: int) -> Hello:
    """Who this host is and what it runs."""
    place = os.environ.get(PLACE_VARIABLE, "")
    return Hello(PROTOCOL_VERSION, versions(), socket.gethostname(), os.getpid(), workers, place)


def _run(
    invitation: Invitation,
    workers: int | None,
    input_is_lifeline: bool,
    exit_without_head: int,
) -> NoReturn:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if input_is_lifeline:
        end_with_input()
    os.environ.update(invitation.environment)
    num_workers = workers or invitation.workers or cores()
    make_room(FOR_SOCKETS, "the connection to the head")
    invitation = invitation.at(_find_head(invitation))
    if invitation.is_ticket:
        invitation = apply(invitation, hello(num_workers))
        num_workers = workers or invitation.workers or num_workers
    connection = HostSocket(invitation)
    lifeline = HostLifeline(connection, invitation, input_is_lifeline, exit_without_head)
    lifeline.start()
    # Workers start while the head is letting us in.
    may_spin = cores() > num_workers
    starter = ProcessStarter.of(invitation.setup, invitation.host, sys.stdout.fileno())
    crew = Workers(num_workers, starter, invitation.limits, may_spin)
    connection.send(hello(num_workers))
    service = Service(invitation.host, connection, crew)
    _leave_on(service, lifeline, signal.SIGTERM, signal.SIGUSR1)
    try:
        grace_s = service.run()
    except BaseException:
        crew.close(0.0)
        raise
    crew.close(grace_s)
    connection.close()
    if lifeline.leaves_on:
        print(f"clusterenv host ends: {lifeline.last_words}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _leave_on(service: Service, lifeline: HostLifeline, *signals: signal.Signals) -> None:
    """Ask the head to take the slots back when one of these arrives.

    The head then says Close, or ends the connection and has the engine end this process.
    """

    def leave(number: int, _: object) -> None:
        lifeline.leaves_on = signal.Signals(number).name
        service.leaving = f"its engine told it to leave ({lifeline.leaves_on})"

    for number in signals:
        signal.signal(number, leave)


def _find_head(invitation: Invitation) -> str:
    def say(text: str) -> None:
        print(f"clusterenv host: {text}", file=sys.stderr, flush=True)

    address, lease_s = invitation.address, invitation.lease_s
    try:
        return numeric(address, lease_s, say)
    except ValueError as error:
        raise SystemExit(f"clusterenv host: {error}") from None
    except OSError as error:
        raise NoHeadError(
            f"clusterenv host: no head at {address} for lease_s={lease_s:g}: {error}"
        ) from None


def _get_invitation() -> tuple[Invitation, bool]:
    """The invitation, and whether it came on a standard input that the head holds open."""
    given = _take_from_environment(ENVIRONMENT_VARIABLE)
    if given is None:
        return _parse(_read_line(0), "standard input"), True
    # One line per host of a job; Slurm numbers the tasks.
    lines, task = os.fsencode(given).splitlines() or [b""], os.environ.get("SLURM_PROCID", "0")
    return _parse(lines[min(int(task), len(lines) - 1)], ENVIRONMENT_VARIABLE), False


def _take_from_environment(name: str) -> str | None:
    """Take the variable's value and delete it: processes that env code starts must not inherit it,
    nor find it in ``/proc/self/environ``, which shows the memory the process was started with."""
    value = os.environ.get(name)
    if value is not None:
        with contextlib.suppress(OSError, AttributeError):
            getenv = ctypes.CDLL(None).getenv
            getenv.restype = ctypes.c_void_p
            if place := getenv(name.encode()):
                ctypes.memset(place, ord("x"), len(os.fsencode(value)))
        del os.environ[name]
    return value


def _parse(data: bytes, source: str, advice: str = _BY_HAND) -> Invitation:
    try:
        invitation = Invitation.from_bytes(data)
        invitation.check_keys()
        return invitation
    except ProtocolError as error:
        raise SystemExit(
            f"clusterenv host: {source} does not hold a valid invitation ({error}); {advice}"
        ) from None


def _read_key_file(path: Path) -> bytes:
    try:
        if _others_can_read(path):
            raise SystemExit(
                f"clusterenv host: {path} can be read by others: chmod 600 {path}, and start the "
                "run again, since its key may have been seen"
            )
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(f"clusterenv host: cannot read the key file: {error}") from None


def _others_can_read(path: Path) -> bool:
    found = path.stat()
    # For a user other than root, Kubernetes mounts a Secret as root's file, readable by its group.
    by_group = found.st_uid == 0 != os.getuid() and found.st_gid in {os.getgid(), *os.getgroups()}
    return bool(found.st_mode & (0o037 if by_group else 0o077))


def _read_line(fd: int) -> bytes:
    # Unbuffered, so that nothing of what follows is consumed.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit(
                "clusterenv host: no invitation on standard input; hosts are started by a "
                "launcher, see ClusterEnv(launcher=…), or by hand with --key-file"
            )
        line += byte
    return line
