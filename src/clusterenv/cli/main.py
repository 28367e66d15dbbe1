"""The command line."""

from __future__ import annotations

import argparse

from clusterenv.version import __version__


def main(arguments: list[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="clusterenv", description="Environments on workers.")
    parser.add_argument("--version", action="version", version=f"clusterenv {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "worker", help="run a worker; launchers start this and write its invitation to stdin"
    )
    if parser.parse_args(arguments).command == "worker":
        from clusterenv.cli.worker import run_worker

        run_worker()
