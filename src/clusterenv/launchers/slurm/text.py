"""Texts for Slurm and from Slurm. Pure: it runs nothing."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterenv.counts import check_count
from clusterenv.launchers.base import Status
from clusterenv.launchers.slurm.refusals import advice_on_waiting

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
"""A job in any other state, even one unknown to this version, counts as alive."""
_ADVICE = {
    "OUT_OF_MEMORY": ": raise mem_per_node",
    "TIMEOUT": ": raise time_limit, or leave more time to go with notice_s",
    "NODE_FAIL": ": the node failed",
}
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class JobRequest:
    """What to ask Slurm for, per host."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_limit: str | None = None
    cpus_per_node: int | None = None
    """None for all cores of a node."""
    mem_per_node: str | None = None
    gpus_per_node: int = 0
    notice_s: int = 60
    extra: tuple[str, ...] = ()
    setup: str = ""
    command: tuple[str, ...] = field(default=("python", "-m", "clusterenv", "host"))

    def __post_init__(self) -> None:
        if self.cpus_per_node is not None:
            check_count("cpus_per_node", self.cpus_per_node, advice="None is for whole nodes")
        check_count("gpus_per_node", self.gpus_per_node, least=0)
        check_count("notice_s", self.notice_s, advice="hosts need time to hand their slots over")
        if self.time_limit is not None:
            seconds_of(self.time_limit)
        _memory(self.mem_per_node)

    def job_options(self, name: str) -> list[str]:
        """sbatch's options for a job of this name."""
        chosen = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self.time_limit,
            "cpus-per-task": self.cpus_per_node,
            "mem": _memory(self.mem_per_node),
            "gpus": self.gpus_per_node or None,
        }
        return [
            f"--job-name={name}",
            "--nodes=1",
            "--ntasks=1",
            *_given(chosen),
            *(["--exclusive"] if self.cpus_per_node is None else []),
            # The script opens the host's log itself, if possible: with a path that a node does
            # not have, Slurm would fail the job without a word.
            "--output=/dev/null",
            # The whole environment: the invitation is in it, and nowhere else.
            "--export=ALL",
            # Only the head restarts hosts.
            "--no-requeue",
            f"--signal=B:USR1@{self._notice_s()}",
            *self.extra,
        ]

    def _notice_s(self) -> int:
        """At most a quarter of the time limit, or hosts would leave as soon as they come."""
        if self.time_limit is None:
            return self.notice_s
        return max(1, min(self.notice_s, seconds_of(self.time_limit) // 4))

    def script(self, log: Path | None, name: str = "clusterenv") -> str:
        """The script of a job of this name, which becomes the host and writes this log."""
        options = [f"#SBATCH {shlex.join([option])}" for option in self.job_options(name)]
        lines = ["#!/bin/bash", *options, *_into(log), *self._start()]
        return "\n".join(lines) + "\n"

    def step_command(self, host: str) -> list[str]:
        """srun's command line for a host as a step of the current allocation."""
        chosen = {
            "cpus-per-task": self.cpus_per_node,
            "mem": _memory(self.mem_per_node),
            "gpus": self.gpus_per_node or None,
            "constraint": self.constraint,
        }
        return [
            "srun",
            f"--job-name={host}",
            "--nodes=1",
            "--ntasks=1",
            *_given(chosen),
            # Only what the step requests, so that others find room. Without it, a step gets all
            # of the allocation's cores on its node.
            *(["--exact"] if self.cpus_per_node is not None else []),
            "--export=ALL",
            *self.extra,
            *("bash", "-c", "\n".join(self._start())),
        ]

    def _start(self) -> list[str]:
        # `exec`: Slurm's signals are for the host.
        return [*([self.setup] if self.setup else []), f"exec {shlex.join(self.command)}"]


def _given(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def _memory(memory: str | None) -> str | None:
    """The amount in Slurm's notation: ``64gb`` is ``64G``."""
    if memory is None:
        return None
    match = _MEMORY.fullmatch(memory) if isinstance(memory, str) else None
    if match is None:
        raise ValueError(
            f"mem_per_node={memory!r} must be a string: a number and K, M, G or T, as in '64G'"
        )
    return f"{match[1]}{match[2].upper()}"


def _into(log: Path | None) -> list[str]:
    """Write to the log, on nodes that see its folder."""
    if log is None:
        return []
    path = shlex.quote(str(log))
    return [f"touch {path} 2>/dev/null && exec >{path} 2>&1"]


def seconds_of(time_limit: str) -> int:
    """Seconds of a time in Slurm's notation: minutes, ``h:mm:ss``, ``days-hours`` and others."""
    match = _TIME_LIMIT.fullmatch(time_limit)
    if match is None:
        raise ValueError(
            f"time_limit={time_limit!r} must be minutes, 'minutes:seconds', "
            "'hours:minutes:seconds' or 'days-hours:minutes:seconds'"
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
    """Why it waits, if it does."""
    nodes: str

    @property
    def is_pending(self) -> bool:
        """Whether it waits to be started."""
        return self.state == "PENDING"

    @property
    def never_starts(self) -> str:
        """Why it waits for something that cannot happen, and what to do; empty if it may start."""
        return advice_on_waiting(self.reason) if self.is_pending else ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED

    def status(self, job: str) -> Status:
        """The status of its host, in Slurm's words."""
        if self.is_pending:
            words = f"job {job} is PENDING ({self.reason}), see: squeue -j {job}"
            return Status(False, words, is_queued=True)
        return Status(False, f"job {job} is {self.state}{_on(self.nodes)}")


def cannot_start(job: str, seen: QueuedJob) -> Status:
    """The status of a host whose job never starts."""
    words = f"job {job} is PENDING ({seen.reason}) and would wait for ever: {seen.never_starts}"
    return Status(True, words, is_queued=True)


def who_waits(reason_by_job: Mapping[str, str]) -> str:
    """``2 jobs wait: 1 is PENDING (Resources), 1 is PENDING (Priority), see: squeue -j 5,6``."""
    count = len(reason_by_job)
    jobs = "1 job waits" if count == 1 else f"{count} jobs wait"
    by_reason = Counter(reason_by_job.values())
    told = [f"{n} {'is' if n == 1 else 'are'} PENDING ({why})" for why, n in by_reason.items()]
    return f"{jobs}: {', '.join(told)}, see: squeue -j {','.join(reason_by_job)}"


def read_queue(text: str) -> dict[str, QueuedJob]:
    """Jobs by id, from the output of ``squeue --format=SQUEUE_FORMAT``."""
    found = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == 4:
            found[words[0]] = QueuedJob(*words[1:])
    return found


def read_end(job: str, text: str) -> Status:
    """How a job ended, from the output of ``scontrol --oneliner show job``."""
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in fields:
        # A controller that lost its state knows nothing about jobs that run well. The host's
        # connection tells whether this one does.
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
