"""``python -m clusterenv view [RUN]``: a web page that shows a running head, read-only.

A separate process reads the run's status channel, as `top` does: the head gets no web server.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from pathlib import Path

from clusterenv.status.channel import fetch, runs
from clusterenv.tools.run_choice import choose_run
from clusterenv.tools.view.access import Access, is_loopback

_SHORTEST_TOKEN = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "run", nargs="?", help="its id (envs.run_id), the beginning of it, or a pid"
    )
    parser.add_argument("--port", type=int, default=0, help="0, the default: any that is free")
    parser.add_argument(
        "--bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; others than this machine reach it only if you say so here",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may call this page, besides localhost and --bind",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file with the token to ask for; by default there is a new one each time",
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    try:
        chosen = choose_run(runs(), arguments.run, "view")
        token = _token(arguments.token_file)
        if arguments.every <= 0:
            raise ValueError(f"--every {arguments.every:g}: it must be above 0")
        first = fetch(chosen)
        if first is None:
            raise ValueError(f"run {chosen.id} does not answer")
        from clusterenv.tools.view.server import serve

        listener = _listen(arguments.bind, arguments.port)
    except (ValueError, ImportError) as error:
        print(f"clusterenv view: {error}", file=sys.stderr)
        return 1
    access = Access(token, [arguments.bind, *arguments.name], listener.getsockname()[1])
    name = arguments.name[0] if arguments.name else arguments.bind
    print(f"run {chosen.id}: {access.url(name)}", flush=True)
    if not is_loopback(arguments.bind):
        print(
            "clusterenv view: what others read from this page is not encrypted, nor is the token; "
            "an ssh tunnel to a page on 127.0.0.1 is",
            file=sys.stderr,
        )
    serve(chosen, first, access, listener, arguments.every)
    return 0


def _token(file: str | None) -> str:
    if file is None:
        return secrets.token_urlsafe(24)
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--token-file {file}: {error}") from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ValueError(
            f"--token-file {file}: a token has at least {_SHORTEST_TOKEN} printable characters; "
            f"make one with: python -c 'import secrets; print(secrets.token_urlsafe())' > {file}"
        )
    return token


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ValueError(f"cannot listen on {address} port {port}: {error}") from error
    return listener
