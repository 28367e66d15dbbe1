"""The command line."""

from __future__ import annotations

import argparse

from clusterenv.version import __version__


def main(arguments: list[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="clusterenv", description="Environments on workers.")
    parser.add_argument("--version", action="version", version=f"clusterenv {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser(
        "worker",
        help="run a worker; launchers start this, people only with --key-file",
        description="Run a worker. Launchers write its invitation to standard input or to the "
        "environment. With --key-file it joins a run whose launcher is AttachLauncher.",
    )
    worker.add_argument("--key-file", help="what AttachLauncher wrote; keep it secret")
    worker.add_argument(
        "--head",
        metavar="tcp://HOST:PORT",
        help="where the head is, if not where the key file says",
    )
    parsed = parser.parse_args(arguments)
    if parsed.command == "worker":
        if parsed.head and not parsed.key_file:
            worker.error("--head goes with --key-file")
        from clusterenv.cli.worker import run_worker

        run_worker(parsed.key_file, parsed.head)
