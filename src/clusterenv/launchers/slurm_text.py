"""What is said to Slurm and what Slurm says: texts only, nothing is run here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterenv.launchers.base import Status

SQUEUE_FORMAT = "%A|%T|%r|%N"
ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    ]
)
"""A job in any other state, one that this version does not know too, counts as alive."""
END_AT_ONCE = "USR2"
"""The signal that makes the script of several workers kill them."""
_ADVICE = {
    "OUT_OF_MEMORY": ": raise mem_per_worker",
    "TIMEOUT": ": raise time_limit, or leave more time to go with notice_s",
    "NODE_FAIL": ": the node failed",
}
_TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Request:
    """What to ask Slurm for, per worker."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_limit: str | None = None
    cpus_per_worker: int = 1
    mem_per_worker: str | None = None
    gpus_per_worker: int = 0
    notice_s: int = 60
    extra: tuple[str, ...] = ()
    setup: str = ""
    command: tuple[str, ...] = field(default=("python", "-m", "clusterenv", "worker"))

    def __post_init__(self) -> None:
        for name, least in (("cpus_per_worker", 1), ("gpus_per_worker", 0), ("notice_s", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.time_limit is not None:
            seconds_of(self.time_limit)
        _times(self.mem_per_worker, 1)

    def job_options(self, workers: int) -> list[str]:
        """sbatch's options for a job with so many workers, all on one node."""
        chosen = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self.time_limit,
            "mem": _times(self.mem_per_worker, workers),
            "gpus": self.gpus_per_worker * workers or None,
        }
        return [
            "--job-name=clusterenv",
            "--nodes=1",
            f"--ntasks={workers}",
            f"--cpus-per-task={self.cpus_per_worker}",
            *(f"--{name}={value}" for name, value in chosen.items() if value is not None),
            # The worker's log is opened by the script, where that is possible: a path that a node
            # does not have would make Slurm fail the job without a word.
            "--output=/dev/null",
            # All of the environment: the invitation is in there, and nowhere else.
            "--export=ALL",
            # Only the head restarts workers.
            "--no-requeue",
            f"--signal=B:USR1@{self._notice_s()}",
            *self.extra,
        ]

    def _notice_s(self) -> int:
        """No more than a quarter of the time limit, or workers would leave as they come."""
        if self.time_limit is None:
            return self.notice_s
        return max(1, min(self.notice_s, seconds_of(self.time_limit) // 4))

    def script(self, logs: Sequence[Path | None]) -> str:
        """The script of a job whose workers write these logs."""
        options = [f"#SBATCH {shlex.join([option])}" for option in self.job_options(len(logs))]
        start = _start_one if len(logs) == 1 else _start_several
        lines = ["#!/bin/bash", *options, *start(self, logs)]
        return "\n".join(lines) + "\n"

    def step_command(self, worker: str) -> list[str]:
        """srun's command line for a worker as a step of the allocation that we are in."""
        chosen = {
            "mem": self.mem_per_worker,
            "gpus": self.gpus_per_worker or None,
            "constraint": self.constraint,
        }
        worker_command = f"exec {shlex.join(self.command)}"
        script = f"{self.setup}\n{worker_command}" if self.setup else worker_command
        return [
            "srun",
            f"--job-name={worker}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.cpus_per_worker}",
            *(f"--{name}={value}" for name, value in chosen.items() if value is not None),
            # Only what the step asks for, so that others find room.
            "--exact",
            "--export=ALL",
            *self.extra,
            *("bash", "-c", script),
        ]


def _start_one(request: Request, logs: Sequence[Path | None]) -> list[str]:
    return [*_into(logs[0]), *_setup(request), f"exec {shlex.join(request.command)}"]


def _start_several(request: Request, logs: Sequence[Path | None]) -> list[str]:
    """Children of the script, which passes signals on (srun would end them at once instead)."""
    command = shlex.join(request.command)
    lines = [
        *_setup(request),
        "trap 'kill -USR1 $(jobs -p)' USR1",
        "trap 'kill -TERM $(jobs -p)' TERM",
        f"trap 'kill -KILL $(jobs -p); exit' {END_AT_ONCE}",
    ]
    for task, log in enumerate(logs):
        start = "; ".join([*_into(log), f"SLURM_PROCID={task} exec {command}"])
        lines.append(f"( {start} ) &")
    # `wait` returns at each signal.
    return [*lines, 'while [ -n "$(jobs -pr)" ]; do wait; done']


def _into(log: Path | None) -> list[str]:
    """Write to the log, on nodes that see its folder."""
    if log is None:
        return []
    path = shlex.quote(str(log))
    return [f"touch {path} 2>/dev/null && exec >{path} 2>&1"]


def _setup(request: Request) -> list[str]:
    return [request.setup] if request.setup else []


def _times(memory: str | None, workers: int) -> str | None:
    """The memory of so many workers, in Slurm's notation: ``4G`` × 3 is ``12G``."""
    if memory is None:
        return None
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", memory, re.IGNORECASE)
    if match is None:
        raise ValueError(f"mem_per_worker={memory!r}: a number and K, M, G or T, as in '4G'")
    return f"{int(match[1]) * workers}{match[2].upper()}"


def seconds_of(time_limit: str) -> int:
    """Slurm's notation of times: minutes, ``h:mm:ss``, ``days-hours`` and what is between."""
    match = _TIME_LIMIT.fullmatch(time_limit)
    if match is None:
        raise ValueError(
            f"time_limit={time_limit!r}: minutes, 'minutes:seconds', 'hours:minutes:seconds' or "
            "'days-hours:minutes:seconds'"
        )
    days, first, second, third = (int(group or 0) for group in match.groups())
    if match[1] is not None or match[4] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second


@dataclass(frozen=True)
class QueuedJob:
    """A line of squeue."""

    state: str
    reason: str
    nodes: str

    def status(self, job: str) -> Status:
        """How its workers are, in Slurm's words."""
        if self.state == "PENDING":
            return Status(False, f"job {job} is PENDING ({self.reason}), see: squeue -j {job}")
        return Status(False, f"job {job} is {self.state}{_on(self.nodes)}")


def read_queue(text: str) -> dict[str, QueuedJob]:
    """Jobs by id, from what ``squeue --format=SQUEUE_FORMAT`` printed."""
    found = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 4:
            found[words[0]] = QueuedJob(*words[1:])
    return found


def read_end(job: str, text: str) -> Status:
    """How a job ended, from what ``scontrol --oneliner show job`` printed."""
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in fields:
        # A controller that lost its state knows nothing of jobs that run well. Whether this one
        # does its connection tells.
        return Status(False, f"job {job} is not known to Slurm any more")
    state = fields["JobState"]
    reason = fields.get("Reason", "None")
    words = f"job {job} ended as {state}"
    if reason not in ("None", state):
        words += f" ({reason})"
    words += f"{_on(fields.get('NodeList', ''))}{_exit_code(fields.get('ExitCode', ''))}"
    return Status(True, words + _ADVICE.get(state, ""))


def _on(nodes: str) -> str:
    return f" on {nodes}" if nodes and nodes != "(null)" else ""


def _exit_code(code: str) -> str:
    """``1:0`` is an exit code, ``0:9`` a signal."""
    exited, _, killed = code.partition(":")
    if killed not in ("", "0"):
        hint = " (out of memory?)" if killed == "9" else ""
        return f", killed by signal {killed}{hint}"
    return f", exit code {exited}" if exited not in ("", "0") else ""
