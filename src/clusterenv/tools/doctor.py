"""``python -m clusterenv doctor``: what would go wrong with a run here, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from clusterenv.backends.base import Backend
from clusterenv.construction import choose_num_workers
from clusterenv.tools.checks.findings import Finding, has_problems, ok, problem, verdict, warning
from clusterenv.tools.checks.machine import MachineFacts, machine_facts, memory_trouble
from clusterenv.tools.checks.machine_checks import check_machine, check_rows
from clusterenv.tools.checks.port_checks import check_port
from clusterenv.tools.checks.worker_checks import Question, check_workers
from clusterenv.tools.env_choice import ADVICE, UnknownEnvError, backend_of
from clusterenv.tools.launcher_choice import HELP, launcher_from
from clusterenv.wire.addresses import Network


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments, in the same words as ClusterEnv."""
    parser.add_argument("--env", help="a Gymnasium id (or module:id) to try out on the workers")
    parser.add_argument("--num-envs", type=int, help="by default one per worker")
    parser.add_argument(
        "--num-workers", type=int, help="by default one per core here, one per host elsewhere"
    )
    parser.add_argument("--launcher", default="local", help=HELP)
    parser.add_argument("--interface", help="the network interface to listen on")
    parser.add_argument("--advertise-host", help="what hosts connect to")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for hosts to start")
    parser.add_argument("--megabytes", type=float, default=8.0, help="to measure each line with")


def run(arguments: argparse.Namespace) -> int:
    """Check, and print a line per check; 1 if there are problems."""
    findings: list[Finding] = []
    for finding in examine(arguments):
        print(finding, flush=True)
        findings.append(finding)
    print(verdict(findings))
    return int(has_problems(findings))


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Every check in turn: this machine, the port, then real hosts and workers."""
    head = machine_facts()
    yield ok(f"versions: {', '.join(f'{name} {v}' for name, v in head.versions.items())}")
    asked = _question(arguments)
    if isinstance(asked, Finding):
        yield asked
        return
    yield from _here(asked, head)
    blocked = False
    for finding in _port(asked):
        blocked |= has_problems([finding])
        yield finding
    if blocked:
        yield warning("workers: not looked at", "fix the problems above first")
    else:
        yield from check_workers(asked, head)


def _port(asked: Question) -> Iterator[Finding]:
    if asked.is_local and asked.network == Network():
        yield ok("port: none is needed, the host is in the head's own process")
        return
    try:
        towards = asked.launcher.towards
    except Exception as error:  # launchers ask their engines
        yield problem(f"launcher: {error}", "fix that, or pass the launcher other machines")
        return
    yield from check_port(asked.network, towards)


def _here(asked: Question, head: MachineFacts) -> Iterator[Finding]:
    yield from check_machine(head, asked.num_workers_here)
    if asked.num_workers_here and (trouble := memory_trouble(0)):
        yield check_rows(0, asked.num_envs_per_host, trouble, head.name)


def _question(arguments: argparse.Namespace) -> Question | Finding:
    num_workers, num_envs = arguments.num_workers, arguments.num_envs
    try:
        launcher = launcher_from(arguments.launcher)
        network = Network(arguments.interface, arguments.advertise_host, arguments.port)
        if num_workers is not None:
            num_workers = choose_num_workers(num_workers, num_envs or num_workers)
    except (TypeError, ValueError) as error:
        return problem(f"arguments: {error}", "see: python -m clusterenv doctor --help")
    backend = _backend(arguments.env) if arguments.env else None
    if isinstance(backend, Finding):
        return backend
    return Question(
        launcher,
        network,
        num_workers,
        num_envs,
        arguments.env or "",
        backend,
        arguments.timeout,
        arguments.megabytes,
    )


def _backend(env: str) -> Backend | Finding:
    try:
        return backend_of(env)
    except UnknownEnvError as error:
        return problem(f"env: {error}", ADVICE)
