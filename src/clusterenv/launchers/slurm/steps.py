"""Hosts as steps of the head's own Slurm allocation."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.errors import StartupError
from clusterenv.launchers.base import Order, Status
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.launchers.slurm.allocation import Allocation
from clusterenv.launchers.slurm.commands import (
    SlurmError,
    address_in_allocation,
    ask,
    steps_of,
)
from clusterenv.launchers.slurm.text import JobRequest

_END_WITHIN_S = 2.0
# By then, a step for which there is room has long begun.
_PATIENCE_S = 5.0


class SlurmSteps(ProcessLauncher):
    """One srun per host, which passes on the invitation from its standard input."""

    trusted = False

    def __init__(
        self, request: JobRequest, environment: Mapping[str, str], log_dir: str | Path | None
    ) -> None:
        super().__init__(log_dir)
        self._request, self._environment = request, environment
        # Why there is no step for a host.
        self._refusals: dict[str, str] = {}
        # Since when srun has been at work for a host whose step Slurm has not shown yet …
        self._begun_at: dict[str, float] = {}
        # … and those of them for which Slurm has no step even after a while.
        self._waiting: set[str] = set()

    def script(self) -> str:
        """The command of a step."""
        return shlex.join(self.command("host-0.0"))

    @property
    def towards(self) -> str:
        """The address of a node of the allocation."""
        try:
            return address_in_allocation()
        except SlurmError as error:
            raise StartupError(f"Slurm does not answer: {error}; try: scontrol ping") from error

    def command(self, host: str) -> list[str]:
        """The command to run on this machine for this host."""
        return self._request.step_command(host)

    def environment(self) -> dict[str, str]:
        """This process's own, without what would give all of the job's memory to one step."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_MEM_PER_")}
        return {**own, **self._environment}

    def start(self, orders: Sequence[Order]) -> None:
        """Start these hosts; do not wait for them. Those without room end as soon as they start."""
        cores = self._request.cpus_per_node
        allocation = Allocation.of(os.environ, self._request.extra)
        # Whether there is room for a replacement is for Slurm to say.
        refusal = "" if self._children else allocation.refusal(len(orders), cores)
        room = allocation.room(cores) if refusal else len(orders)
        self._refusals |= {order.host: refusal for order in orders[room:]}
        self._begun_at |= {order.host: time.monotonic() for order in orders[:room]}
        super().start(orders[:room])

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""
        self._look_for_steps()
        refused = self._refusals.copy().items()
        return {host: Status(True, why, is_queued=True) for host, why in refused} | {
            host: Status(True, f"srun ended with {status.reason}")
            if status.ended
            else self._status_of_step(host)
            for host, status in super().status().items()
        }

    def _status_of_step(self, host: str) -> Status:
        if host in self._waiting:
            words = f"its step waits for room in job {_job()}, see: squeue --me -s"
            return Status(False, words, is_queued=True)
        return Status(False, f"srun runs it in job {_job()}")

    def _look_for_steps(self) -> None:
        """Find out which hosts still wait for their step; srun itself does not say so for long."""
        now = time.monotonic()
        late = {host for host, at in self._begun_at.copy().items() if now - at > _PATIENCE_S}
        # While Slurm does not answer, its last answer is all that is known.
        with contextlib.suppress(SlurmError):
            names = {name for _, name in steps_of(_job())} if late else set()
            self._waiting = late - names
            for host in late & names:
                self._begun_at.pop(host, None)

    def stop(self, hosts: Sequence[str], grace_s: float = 0.0) -> None:
        """End these hosts and forget them; first give them ``grace_s`` to end by themselves."""
        children = {host: self._children[host] for host in hosts if host in self._children}
        deadline = time.monotonic() + grace_s
        for child in children.values():
            child.wait(deadline)
        # srun passes on the end of its standard input, which ends a host; killed, it could not.
        for child in children.values():
            child.close_input()
        deadline = time.monotonic() + _END_WITHIN_S
        for child in children.values():
            child.wait(deadline)
        stuck = [host for host, child in children.items() if child.exit_code() is None]
        if stuck:
            _cancel(stuck)
        super().stop(hosts)
        for host in hosts:
            self._refusals.pop(host, None)
            self._begun_at.pop(host, None)


def _cancel(hosts: Sequence[str]) -> None:
    """Cancel the steps with these names."""
    with contextlib.suppress(SlurmError):
        stuck = [step for step, name in steps_of(_job()) if name in hosts]
        if stuck:
            ask(["scancel", "--quiet", "--signal=KILL", *stuck])


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "")
