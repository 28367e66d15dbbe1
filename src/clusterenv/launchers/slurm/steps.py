"""Hosts as steps of the head's own Slurm allocation."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterenv.errors import StartupError
from clusterenv.launchers.base import Status
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.launchers.slurm.commands import SlurmError, address_in_allocation, ask
from clusterenv.launchers.slurm.text import JobRequest

_END_WITHIN_S = 2.0


class SlurmSteps(ProcessLauncher):
    """One srun per host, which passes on the invitation from its standard input."""

    trusted = False

    def __init__(
        self, request: JobRequest, environment: Mapping[str, str], log_dir: str | Path | None
    ) -> None:
        super().__init__(log_dir)
        self._request, self._environment = request, environment

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

    def status(self) -> dict[str, Status]:
        """The status of each host that was started and not yet stopped."""
        return {
            host: Status(status.ended, f"srun ended with {status.reason}")
            if status.ended
            else Status(False, f"srun runs it in job {os.environ.get('SLURM_JOB_ID')}")
            for host, status in super().status().items()
        }

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


def _cancel(hosts: Sequence[str]) -> None:
    """Cancel the steps with these names."""
    job = os.environ.get("SLURM_JOB_ID", "")
    with contextlib.suppress(SlurmError):
        lines = ask(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"])
        rows = [line.split(maxsplit=1) for line in lines.splitlines()]
        steps = [row[0] for row in rows if row[-1].strip() in hosts]
        if steps:
            ask(["scancel", "--quiet", "--signal=KILL", *steps])
