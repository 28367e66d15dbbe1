"""Hosts on a Slurm cluster: as jobs of their own, or as steps of the head's allocation."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.counts import check_count
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.parameters import (
    check_environment,
    names_valid_parameters,
)
from clusterenv.launchers.slurm.jobs import SlurmJobs
from clusterenv.launchers.slurm.steps import SlurmSteps
from clusterenv.launchers.slurm.text import JobRequest


class SlurmLauncher:
    """Starts a host per node with sbatch, or with srun if the head itself is in an allocation.

    Their Python must exist on the nodes under the same path, and the nodes must be able to reach
    the head's machine; nothing else needs to be shared.

    Args:
        partition: Where to run, as in sbatch.
        nodes: How many nodes, each of which is one job (or step) with one host.
        cpus_per_node: Cores on each, and as many workers; None for whole nodes with all cores.
            With fewer than a node has, Slurm may put several hosts on one node.
        mem_per_node: Memory on each, such as ``"64G"``.
        gpus_per_node: GPUs on each. All workers of a host see them all.
        account: Whom to charge.
        qos: The quality of service.
        constraint: The features that nodes must have.
        time_limit: How long a job may run, in Slurm's notation. By default the partition's limit.
        setup: Shell commands to run first: ``"module load cuda"``, ``"source env/bin/activate"``.
        python: The Python to run on the nodes. By default the path of the head's own.
        prefix: What to put before it: ``("apptainer", "exec", "image.sif")``.
        environment: Environment variables for the workers, on top of the head's own.
        notice_s: How long before the time limit hosts leave, and their slots start over in new
            jobs. Slurm may add half a minute.
        extra: More arguments for sbatch (or srun): ``("--nodelist=n1", "--reservation=r")``.
        log_dir: Where each host's log goes (``host-0.0.log`` …): a folder that the nodes see too.
            By default a temporary one in ``~/.cache``; errors show the end of the log.
        new_jobs: Whether to submit jobs or to run steps of the current allocation; by default
            steps, if there is one.
    """

    trusted = False
    enrols = False
    watch_every_s = 2.0

    @names_valid_parameters
    def __init__(
        self,
        partition: str | None = None,
        *,
        nodes: int = 1,
        cpus_per_node: int | None = None,
        mem_per_node: str | None = None,
        gpus_per_node: int = 0,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        time_limit: str | int | None = None,
        setup: str = "",
        python: str = sys.executable,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        notice_s: int = 60,
        extra: Sequence[str] = (),
        log_dir: str | Path | None = None,
        new_jobs: bool | None = None,
    ) -> None:
        self.num_hosts = check_count("nodes", nodes, advice="each node is one job with one host")
        self.workers_per_host = cpus_per_node
        self._request = JobRequest(
            partition=partition,
            account=account,
            qos=qos,
            constraint=constraint,
            time_limit=None if time_limit is None else str(time_limit),
            cpus_per_node=cpus_per_node,
            mem_per_node=mem_per_node,
            gpus_per_node=gpus_per_node,
            notice_s=notice_s,
            extra=_words("extra", extra),
            setup=setup,
            command=(*_words("prefix", prefix), python, "-m", "clusterenv", "host"),
        )
        own = {"PYTHONUNBUFFERED": "1", **check_environment(environment)}
        if new_jobs is None:
            new_jobs = "SLURM_JOB_ID" not in os.environ
        _assert_installed("sbatch" if new_jobs else "srun")
        engine = SlurmJobs if new_jobs else SlurmSteps
        self._engine: SlurmJobs | SlurmSteps = engine(self._request, own, log_dir)

    def script(self) -> str:
        """The script that is submitted for each job, or the command of each step."""
        return self._engine.script()

    @property
    def towards(self) -> str:
        """The address of a node."""
        return self._engine.towards

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them."""
        self._engine.start(orders)

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped, in Slurm's words."""
        return self._engine.status()

    def logs(self, host: str) -> str:
        """The end of what the host printed, if its log can be seen from here."""
        return self._engine.logs(host)

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        self._engine.stop(hosts, grace_s)

    def enrolled(self, host: str, place: str) -> None:
        """No host comes with a ticket: each has an invitation of its own."""


def _words(name: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(
            f"{name}={given!r} must be a list of arguments, not one string: "
            f"{name}={tuple(given.split())!r}"
        )
    return tuple(given)


def _assert_installed(program: str) -> None:
    if shutil.which(program) is None:
        raise ValueError(
            f"there is no {program!r} on this machine: start the head where Slurm's commands are, "
            "on a login node or in a job"
        )
