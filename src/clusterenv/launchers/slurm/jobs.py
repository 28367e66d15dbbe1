"""Hosts as Slurm jobs of their own."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from clusterenv.errors import StartupError
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.slurm.commands import (
    SlurmError,
    address_of_a_node,
    cancel,
    queue,
    show_job,
    submit,
)
from clusterenv.launchers.slurm.keeper import Keeper
from clusterenv.launchers.slurm.refusals import advice_on_refusal
from clusterenv.launchers.slurm.text import (
    ENDED,
    SQUEUE_FORMAT,
    JobRequest,
    QueuedJob,
    cannot_start,
    read_end,
    read_queue,
    who_waits,
)
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE

_log = logging.getLogger("clusterenv")
_LOG_TAIL_BYTES = 8_000
_PATIENCE_S = 5.0
_POLL_S = 0.2
_SUBMIT_AT_ONCE = 8


@dataclass(eq=False)
class _Job:
    id: str
    """Empty if it could not be submitted."""
    submitted_at: float
    latest: Status
    """Slurm's last word on it."""
    waits_for: str = ""
    """Slurm's reason, while the job is pending."""
    was_told: bool = False
    """Whether the user knows that it waits."""

    def take(self, seen: QueuedJob) -> None:
        """Update it from squeue's line."""
        # Slurm's first reason for a new job may be a wrong one.
        if seen.never_starts and self.has_waited:
            self.end(cannot_start(self.id, seen))
            return
        self.latest = seen.status(self.id)
        self.waits_for = seen.reason if seen.is_pending else ""

    @property
    def has_waited(self) -> bool:
        """Whether it was submitted more than a few seconds ago."""
        return time.monotonic() - self.submitted_at > _PATIENCE_S

    def end(self, how: Status) -> None:
        self.latest, self.waits_for = how, ""


class SlurmJobs:
    """One job for each host, so that each can be replaced.

    Not a job array: its elements share one environment, so each host could read the keys of all
    the others.
    """

    def __init__(
        self, request: JobRequest, environment: Mapping[str, str], log_dir: str | Path | None
    ) -> None:
        self._request, self._environment = request, environment
        self._log_dir = Path(log_dir).absolute() if log_dir is not None else None
        self._keeper: Keeper | None = None
        self._job_by_host: dict[str, _Job] = {}
        self._has_started = False
        # A replacement need not wait until the previous job has been cancelled.
        self._cancelling: list[subprocess.Popen[bytes]] = []

    def script(self) -> str:
        """The script that is submitted for a job."""
        return self._script("host-0.0", "RUN")

    def _script(self, host: str, run: str) -> str:
        folder = self._log_dir if self._keeper is None else self._keeper.folder
        name = "-".join(word for word in ("clusterenv", run, host) if word)
        return self._request.script(None if folder is None else folder / f"{host}.log", name)

    @property
    def towards(self) -> str:
        """The address of a node of the partition."""
        try:
            return address_of_a_node(self._request.partition)
        except SlurmError as error:
            raise StartupError(f"Slurm does not answer: {error}; try: sinfo") from error

    def start(self, orders: Sequence[Order]) -> None:
        """Submit a job for each host; do not wait for them."""
        keeper = self._keeper = self._keeper or Keeper(self._log_dir)
        with ThreadPoolExecutor(_SUBMIT_AT_ONCE) as pool:
            list(pool.map(lambda order: self._submit(order, keeper), orders))
        failures = [job.latest.reason for job in self._jobs() if not job.id]
        if failures and not self._has_started:
            said = "; ".join(failures[0].splitlines())
            advice = advice_on_refusal(said)
            raise StartupError(f"cannot submit a job for a host: {said}\n{advice}")
        self._has_started = True

    def _submit(self, order: Order, keeper: Keeper) -> None:
        # Stored here and not by the waiting thread, which may be interrupted: no job must get lost.
        self._job_by_host[order.host] = self._submitted(order, keeper)

    def _submitted(self, order: Order, keeper: Keeper) -> _Job:
        now = time.monotonic()
        # In sbatch's own environment, which Slurm shows to nobody else, unlike script and options.
        env = {**_outside(os.environ), **self._environment}
        env[ENVIRONMENT_VARIABLE] = order.invitation.decode()
        try:
            job = submit(self._script(order.host, order.run), env, keeper.ear)
        except SlurmError as error:
            # Not raised for a replacement: the head tries again within its budget.
            return _Job("", now, Status(True, str(error)))
        return _Job(job, now, Status(False, f"job {job} was submitted"))

    def _jobs(self) -> list[_Job]:
        # A copy: the watcher asks while the user's thread replaces hosts.
        return list(self._job_by_host.values())

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""
        # While Slurm does not answer, its last answer is all that is known.
        with contextlib.suppress(SlurmError):
            self._ask_for([job for job in self._jobs() if not job.latest.ended])
        self._tell_who_waits()
        return {host: job.latest for host, job in list(self._job_by_host.items())}

    def _ask_for(self, jobs: Sequence[_Job]) -> None:
        if not jobs:
            return
        found = read_queue(queue([job.id for job in jobs], SQUEUE_FORMAT))
        for job in jobs:
            seen = found.get(job.id)
            if seen is None or seen.has_ended:
                job.end(read_end(job.id, show_job(job.id)))
            else:
                job.take(seen)

    def _tell_who_waits(self) -> None:
        waiting = [job for job in self._jobs() if job.waits_for]
        # Once for each job: Slurm's reasons change as the queue moves.
        if any(job.has_waited and not job.was_told for job in waiting):
            _log.warning("%s", who_waits({job.id: job.waits_for for job in waiting}))
            for job in waiting:
                job.was_told = True

    def logs(self, host: str) -> str:
        """The end of what the host printed, if its log can be seen from here."""
        folder = self._keeper.folder if self._keeper is not None else None
        if folder is None:
            return ""
        with contextlib.suppress(OSError), (folder / f"{host}.log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        stopped = [self._job_by_host.pop(host) for host in hosts if host in self._job_by_host]
        left = [job.id for job in stopped if not job.latest.ended or job.latest.is_queued]
        if grace_s > 0:
            left = _wait_for_ends(left, time.monotonic() + grace_s)
        if left:
            self._cancelling.append(cancel(left))
        if not self._job_by_host and self._keeper is not None:
            self._dismiss_keeper(self._keeper)

    def _dismiss_keeper(self, keeper: Keeper) -> None:
        for process in self._cancelling:
            process.communicate()
        self._cancelling.clear()
        keeper.close()
        self._keeper = None


def _wait_for_ends(jobs: Sequence[str], deadline: float) -> list[str]:
    """Wait until these jobs have ended; returns those that have not by ``deadline``."""
    left = list(jobs)
    while left and time.monotonic() < deadline:
        with contextlib.suppress(SlurmError):
            found = read_queue(queue(left, SQUEUE_FORMAT))
            over = {*ENDED, "COMPLETING"}
            left = [job for job in left if job in found and found[job].state not in over]
        if left:
            time.sleep(_POLL_S)
    return left


def _outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what describes the allocation that the head itself may be in."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
