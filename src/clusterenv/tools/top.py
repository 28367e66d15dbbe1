"""``python -m clusterenv top [RUN]``: watch a running head, read-only, from its own machine."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from clusterenv.status.channel import Run, fetch, runs
from clusterenv.status.run_status import RunStatus
from clusterenv.tools.keys import key_by_key, wait_for_quit
from clusterenv.tools.run_choice import choose_run, command_of, script_of
from clusterenv.tools.run_table import counted, run_table
from clusterenv.tools.tables import Table, as_text

_ONCE_S = 0.5
_OTHER_LINES = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "run", nargs="?", help="its id (envs.run_id), the beginning of it, or a pid"
    )
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--list", action="store_true", help="print the runs of this user and end")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")


def run(arguments: argparse.Namespace) -> int:
    """Show the run until it ends."""
    if arguments.list:
        return _list()
    try:
        chosen = choose_run(runs(), arguments.run)
    except ValueError as error:
        print(f"clusterenv top: {error}", file=sys.stderr)
        return 1
    first = fetch(chosen)
    if first is None:
        print(f"clusterenv top: run {chosen.id} does not answer", file=sys.stderr)
        return 1
    if arguments.once:
        return _once(chosen, first)
    from clusterenv.tools.terminal import show_live

    with contextlib.suppress(KeyboardInterrupt), key_by_key() as has_keys:
        show_live(_watch(chosen, first, arguments.every, has_keys))
    if fetch(chosen) is None:
        print(f"run {chosen.id} has ended")
    return 0


def _list() -> int:
    for each in runs():
        status = fetch(each)
        if status is not None:
            hosts = counted(len(status.hosts), "host")
            workers = counted(status.num_workers, "worker")
            sizes = f"{hosts}  {workers}  {status.num_envs} envs of {status.env}"
            print(f"{each.id}  pid {each.pid}  {sizes}  {script_of(command_of(each.pid))}")
    return 0


def _once(chosen: Run, first: RunStatus) -> int:
    time.sleep(_ONCE_S)
    print(as_text(run_table(first, fetch(chosen) or first)))
    return 0


def _watch(chosen: Run, first: RunStatus, every_s: float, has_keys: bool) -> Iterator[Table]:
    before: RunStatus | None = None
    now: RunStatus | None = first
    while now is not None:
        table = run_table(before, now, max(1, shutil.get_terminal_size().lines - _OTHER_LINES))
        yield replace(table, notes=[*table.notes, "q quits"]) if has_keys else table
        if wait_for_quit(every_s, has_keys):
            return
        before, now = now, fetch(chosen)
