"""The command line."""

from __future__ import annotations

import argparse
import importlib
import sys

from clusterenv.errors import StartupError
from clusterenv.platforms import check_workers
from clusterenv.version import __version__

_ON_LINUX = ("host", "top", "view", "logs")
"""They start worker processes, or look at those of a head through what only Linux has."""
# Command → what it does. Each has a file of its own, imported only when it is asked for: workers
# must start fast.
_TOOLS = {
    "doctor": "check this machine, the network and workers: what would go wrong, and what to do",
    "top": "watch a running head: hosts, workers, steps/s, versions, divergences, bytes",
    "view": "a web page that shows a running head: charts, hosts, losses, logs, a policy at play",
    "logs": "what the workers of a running head have printed; of those on the head's machine",
    "bench": "where the time of a run goes, and which layout suits it: of an env, or of a script",
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(
        prog="clusterenv", description="Environments on many machines."
    )
    parser.add_argument("--version", action="version", version=f"clusterenv {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    host = commands.add_parser(
        "host",
        help="run a host with its workers; launchers start this, people only with --key-file",
        description="Run a host. Launchers write its invitation to standard input or to the "
        "environment. With --key-file it joins a run whose launcher is AttachLauncher or "
        "KubernetesLauncher.",
    )
    host.add_argument("--key-file", help="what AttachLauncher wrote; keep it secret")
    host.add_argument(
        "--head",
        metavar="tcp://HOST:PORT",
        help="where the head is, if not where the key file says",
    )
    host.add_argument(
        "--once",
        action="store_true",
        help="with --key-file: do not apply again when the host ends, but end with it; the exit "
        "code is 0 if that is because the head is gone or the run is over",
    )
    host.add_argument("--workers", type=int, help="how many workers; by default one per core")
    tools = {name: commands.add_parser(name, help=help) for name, help in _TOOLS.items()}
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in _ON_LINUX:
        _check_platform(parser, given[0])
    if given and given[0] in tools:
        tool = importlib.import_module(f"clusterenv.tools.{given[0]}")
        tool.add_arguments(tools[given[0]])
        sys.exit(tool.run(parser.parse_args(given)))
    parsed = parser.parse_args(arguments)
    if parsed.command == "host":
        for option in ("head", "once"):
            if getattr(parsed, option) and not parsed.key_file:
                host.error(f"--{option} goes with --key-file")
        if parsed.workers is not None and parsed.workers < 1:
            host.error(f"--workers {parsed.workers}: at least 1")
        from clusterenv.wire.host_main import run_host

        run_host(parsed.key_file, parsed.head, parsed.once, parsed.workers)


def _check_platform(parser: argparse.ArgumentParser, command: str) -> None:
    try:
        check_workers()
    except StartupError as error:
        parser.error(f"{command}: {error}")
