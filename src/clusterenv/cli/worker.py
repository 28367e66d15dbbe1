"""``python -m clusterenv worker``: the one command that every launcher starts."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from clusterenv.errors import ProtocolError
from clusterenv.launchers.attached import keep_attached
from clusterenv.wire.addresses import numeric
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE, Invitation
from clusterenv.worker.applying import NoHeadError, apply
from clusterenv.worker.lifeline import EXIT_HEAD_GONE, Lifeline, end_with_input
from clusterenv.worker.worker import Worker


def run_worker(key_file: str | None = None, head: str | None = None, once: bool = False) -> None:
    """Get the invitation, work until the head says Close, and end."""
    if key_file is None:
        _prepare()
        _run(*_get_invitation(), exit_without_head=EXIT_HEAD_GONE)
    ticket = _parse(_read_key_file(Path(key_file)), key_file)
    ticket = ticket if head is None else ticket.at(head)
    if not once:
        raise SystemExit(keep_attached(ticket.to_bytes()))
    _prepare()
    # The first process of a container, unlike others, does not end by default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _run(ticket, input_is_lifeline=False, exit_without_head=0)
    except NoHeadError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(0) from None


def _prepare() -> None:
    faulthandler.enable()
    os.environ["CLUSTERENV_WORKER"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):
        # A worker that is woken must not push the head aside before it has woken the others.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _run(invitation: Invitation, input_is_lifeline: bool, exit_without_head: int) -> NoReturn:
    if input_is_lifeline:
        end_with_input()
    # Standard input is the lifeline now; env code that asks for input gets end of file.
    sys.stdin = open(os.devnull)  # noqa: SIM115
    invitation = invitation.at(_find_head(invitation))
    if invitation.is_ticket:
        invitation = apply(invitation)
    worker = Worker.connect(invitation)
    worker.forward_warnings()
    worker.leave_on(signal.SIGTERM, signal.SIGUSR1)
    Lifeline(worker, invitation, input_is_lifeline, exit_without_head).start()
    worker.run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not `return`: env libraries may leave threads that would keep the interpreter alive.
    os._exit(0)


def _find_head(invitation: Invitation) -> str:
    def say(text: str) -> None:
        print(f"clusterenv worker: {text}", file=sys.stderr, flush=True)

    address, lease_s = invitation.address, invitation.lease_s
    try:
        return numeric(address, lease_s, say)
    except ValueError as error:
        raise SystemExit(f"clusterenv worker: {error}") from None
    except OSError as error:
        raise NoHeadError(
            f"clusterenv worker: no head at {address} for lease_s={lease_s:g}: {error}"
        ) from None


def _get_invitation() -> tuple[Invitation, bool]:
    """The invitation, and whether it came through a standard input that the head holds open."""
    given = _take_from_environment(ENVIRONMENT_VARIABLE)
    if given is None:
        return _parse(_read_line(0), "standard input"), True
    # One line per worker of a job; Slurm and its kin number the tasks.
    lines, task = given.splitlines(), int(os.environ.get("SLURM_PROCID", "0"))
    return _parse(lines[min(task, len(lines) - 1)].encode(), ENVIRONMENT_VARIABLE), False


def _take_from_environment(name: str) -> str | None:
    """The variable's value, deleted: what env code starts must not inherit it, nor find it in
    ``/proc/self/environ``, which shows the memory that the process was started with."""
    value = os.environ.get(name)
    if value is not None:
        with contextlib.suppress(OSError, AttributeError):
            getenv = ctypes.CDLL(None).getenv
            getenv.restype = ctypes.c_void_p
            if place := getenv(name.encode()):
                ctypes.memset(place, ord("x"), len(os.fsencode(value)))
        del os.environ[name]
    return value


def _parse(data: bytes, source: str) -> Invitation:
    try:
        return Invitation.from_bytes(data)
    except ProtocolError as error:
        raise SystemExit(
            f"clusterenv worker: what {source} holds is no invitation: {error}"
        ) from None


def _read_key_file(path: Path) -> bytes:
    try:
        if _others_can_read(path):
            raise SystemExit(
                f"clusterenv worker: {path} can be read by others: chmod 600 {path}, and start the "
                "run again, since its key may have been seen"
            )
        return path.read_bytes()
    except OSError as error:
        raise SystemExit(f"clusterenv worker: cannot read the key file: {error}") from None


def _others_can_read(path: Path) -> bool:
    found = path.stat()
    # Kubernetes hands a Secret to a user other than root as a file of root's, by its group.
    by_group = found.st_uid == 0 != os.getuid() and found.st_gid in {os.getgid(), *os.getgroups()}
    return bool(found.st_mode & (0o037 if by_group else 0o077))


def _read_line(fd: int) -> bytes:
    # Unbuffered, so that nothing of what follows is swallowed.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit(
                "clusterenv worker: no invitation on standard input; workers are started by a "
                "launcher, see ClusterEnv(launcher=…), or by hand with --key-file"
            )
        line += byte
    return line
