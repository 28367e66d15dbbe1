"""``python -m clusterenv logs [RUN]``: the output of the workers of a running head.

A worker's standard output is an unnamed file, or one in ``log_dir``. The kernel shows it to the
same user in ``/proc``: neither the head nor the workers do anything for this.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from collections.abc import Iterator

from clusterenv.status.channel import Run, fetch, runs
from clusterenv.status.run_status import HostSummary, RunStatus, WorkerSummary
from clusterenv.tools.run_choice import choose_run
from clusterenv.tools.worker_logs import WorkerLog

_EVERY_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "run", nargs="?", help="its id (envs.run_id), the beginning of it, or a pid"
    )
    parser.add_argument("--worker", metavar="NAME", help="only this one: worker-3, worker-3.0 …")
    parser.add_argument("--host", metavar="NAME", help="only workers of this host: host-0 …")
    parser.add_argument("--tail", type=int, metavar="LINES", help="only so many of each, the last")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")


def run(arguments: argparse.Namespace) -> int:
    """Print what workers have printed."""
    try:
        chosen = choose_run(runs(), arguments.run, "logs")
    except ValueError as error:
        return _fail(str(error))
    status = fetch(chosen)
    if status is None:
        return _fail(f"run {chosen.id} does not answer")
    wanted = list(_wanted(status, arguments))
    if not wanted:
        return _fail(f"run {chosen.id} has no such worker; it has: {', '.join(_names(status))}")
    shown = _Shown(has_names=len(wanted) > 1 or (arguments.follow and not arguments.worker))
    shown.look_at(wanted)
    # The reader may have seen enough.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        shown.print_news(arguments.tail, to_the_end=not arguments.follow)
        if shown.logs and not shown.has_lines:
            _say("nothing printed yet")
        if arguments.follow:
            _follow(chosen, shown, arguments)
    return 0 if shown.logs else 1


def _fail(text: str) -> int:
    _say(text)
    return 1


def _say(text: str) -> None:
    print(f"clusterenv logs: {text}", file=sys.stderr)


def _follow(chosen: Run, shown: _Shown, arguments: argparse.Namespace) -> None:
    status: RunStatus | None
    while (status := fetch(chosen)) is not None:
        shown.look_at(list(_wanted(status, arguments)))
        shown.print_news()
        time.sleep(_EVERY_S)
    shown.print_news(to_the_end=True)


def _wanted(
    status: RunStatus, arguments: argparse.Namespace
) -> Iterator[tuple[HostSummary, WorkerSummary]]:
    for host in status.hosts:
        for worker in host.workers:
            if _is_meant(arguments.host, host.name) and _is_meant(arguments.worker, worker.name):
                yield host, worker


def _is_meant(wanted: str | None, name: str) -> bool:
    """Whether ``wanted`` is this name, with or without the incarnation number."""
    return wanted is None or wanted in (name, name.rpartition(".")[0])


def _names(status: RunStatus) -> list[str]:
    return [f"{worker.name} of {host.name}" for host in status.hosts for worker in host.workers]


class _Shown:
    """The logs that are shown, by worker, and why others cannot be shown."""

    def __init__(self, has_names: bool) -> None:
        self._has_names = has_names
        self.has_lines = False
        """Whether any worker has printed a line."""
        self.logs: dict[str, WorkerLog] = {}
        self._reasons: dict[str, str] = {}

    def look_at(self, workers: list[tuple[HostSummary, WorkerSummary]]) -> None:
        """Show these too."""
        num_hosts = len({host.name for host, _ in workers})
        for host, worker in workers:
            label = worker.name if num_hosts == 1 else f"{host.name} {worker.name}"
            key = f"{host.name} {worker.name} {worker.pid}"
            if worker.pid and key not in self.logs and key not in self._reasons:
                self._open(key, label, host, worker)

    def _open(self, key: str, label: str, host: HostSummary, worker: WorkerSummary) -> None:
        if reason := why_not_here(host, worker):
            self._tell(key, reason)
            return
        try:
            self.logs[key] = WorkerLog(worker.pid, f"{label}: " if self._has_names else "")
        except FileNotFoundError:
            pass  # it has just ended
        except (OSError, ValueError) as error:
            self._tell(key, f"the output of {label} cannot be read: {error}")

    def _tell(self, key: str, reason: str) -> None:
        if reason not in self._reasons.values():
            _say(reason)
        self._reasons[key] = reason

    def print_news(self, tail: int | None = None, to_the_end: bool = False) -> None:
        """Print what is new; at the first look, only the last ``tail`` lines of each."""
        for log in self.logs.values():
            lines = log.read(to_the_end)
            self.has_lines |= bool(lines)
            sys.stdout.writelines(lines if tail is None else lines[max(0, len(lines) - tail) :])
        sys.stdout.flush()


def why_not_here(host: HostSummary, worker: WorkerSummary) -> str:
    """Why the output of this worker cannot be read here; empty if it can."""
    if host.machine != socket.gethostname():
        return (
            f"{host.name} runs on {host.machine}, and its output cannot be read from here. If its "
            f"launcher was given log_dir=, see {host.name}.log in that folder; if ClusterEnv was, "
            f"see the folder {host.name} in that folder on {host.machine}; on Kubernetes, see "
            "`kubectl logs`"
        )
    if worker.pid == host.pid:
        return "these workers are threads of the head: they print to its own output"
    return ""
