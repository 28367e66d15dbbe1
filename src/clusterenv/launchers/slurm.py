"""Workers on a Slurm cluster: jobs of their own, or steps of the allocation that the head is in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.launchers.base import ONE_THREAD, Order, Status
from clusterenv.launchers.slurm_jobs import SlurmJobs
from clusterenv.launchers.slurm_steps import SlurmSteps
from clusterenv.launchers.slurm_text import Request


class SlurmLauncher:
    """Starts workers with sbatch, or with srun where the head itself runs in an allocation.

    Where workers run their Python must be there, under the same path, and the head's machine must
    be reachable; nothing else needs to be shared.

    Args:
        partition: Where to run, as in sbatch.
        account: Whom to charge.
        qos: The quality of service.
        constraint: The features that nodes must have.
        time_limit: How long a job may run, in Slurm's notation. The partition's by default.
        cpus_per_worker: Cores for each worker.
        mem_per_worker: Memory for each, such as ``"4G"``.
        gpus_per_worker: GPUs for each. Workers of one job see all of that job's.
        workers_per_job: So many workers share a job, all on one node: fewer jobs, but all of its
            workers wait, leave and end with it.
        setup: Shell commands to run before: ``"module load cuda"``, ``"source env/bin/activate"``.
        python: The Python to run on the nodes. By default the path of the head's own.
        prefix: What to put before it: ``("apptainer", "exec", "image.sif")``.
        environment: Environment variables for the workers, on top of the head's own.
        notice_s: How long before the time limit workers hand their slots over. Slurm may take half
            a minute more.
        extra: More arguments for sbatch (or srun): ``("--nodelist=n1", "--exclusive")``.
        log_dir: Where each worker's log goes (``worker-0.0.log`` …): a folder that the nodes see
            too. By default it is a temporary one in ``~/.cache``, of which errors show the end.
        new_jobs: Whether to submit jobs or to take steps of the current allocation; by default
            steps where there is one.
    """

    spawns_here = False
    shares_memory = False
    enrols = False
    watch_every_s = 2.0

    def __init__(
        self,
        partition: str | None = None,
        *,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        time_limit: str | int | None = None,
        cpus_per_worker: int = 1,
        mem_per_worker: str | None = None,
        gpus_per_worker: int = 0,
        workers_per_job: int = 1,
        setup: str = "",
        python: str = sys.executable,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        notice_s: int = 60,
        extra: Sequence[str] = (),
        log_dir: str | Path | None = None,
        new_jobs: bool | None = None,
    ) -> None:
        if workers_per_job < 1:
            raise ValueError(f"workers_per_job={workers_per_job} must be at least 1")
        if isinstance(extra, str) or isinstance(prefix, str):
            raise TypeError("extra= and prefix= take a list of arguments, not one string")
        self._request = Request(
            partition=partition,
            account=account,
            qos=qos,
            constraint=constraint,
            time_limit=None if time_limit is None else str(time_limit),
            cpus_per_worker=cpus_per_worker,
            mem_per_worker=mem_per_worker,
            gpus_per_worker=gpus_per_worker,
            notice_s=notice_s,
            extra=tuple(extra),
            setup=setup,
            command=(*prefix, python, "-m", "clusterenv", "worker"),
        )
        self._workers_per_job = workers_per_job
        own = {**ONE_THREAD, "PYTHONUNBUFFERED": "1", **(environment or {})}
        if new_jobs is None:
            new_jobs = "SLURM_JOB_ID" not in os.environ
        _assert_installed("sbatch" if new_jobs else "srun")
        self._engine: SlurmJobs | SlurmSteps = (
            SlurmJobs(self._request, workers_per_job, own, log_dir)
            if new_jobs
            else SlurmSteps(self._request, own, log_dir)
        )

    def script(self) -> str:
        """What is submitted for each job, or run for each step."""
        return self._engine.script()

    @property
    def towards(self) -> str:
        """The address of a node."""
        return self._engine.towards

    def start(self, orders: Sequence[Order]) -> None:
        """Start these workers; do not wait for them."""
        self._engine.start(orders)

    def status(self) -> dict[str, Status]:
        """Each worker that was started and not yet stopped, in Slurm's words."""
        return self._engine.status()

    def logs(self, worker: str) -> str:
        """The end of what the worker printed, if its log can be seen from here."""
        return self._engine.logs(worker)

    def stop(self, workers: Sequence[str], grace_s: float = 0.0) -> None:
        """End these workers, forget them; let them end by themselves for ``grace_s`` first."""
        self._engine.stop(workers, grace_s)


def _assert_installed(program: str) -> None:
    if shutil.which(program) is None:
        raise ValueError(
            f"there is no {program!r} on this machine: start the head where Slurm's commands are, "
            "on a login node or in a job"
        )
