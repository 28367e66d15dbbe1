"""Runs Slurm's commands; every wait has an end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from clusterenv.wire.addresses import ANYWHERE

_TIMEOUT_S = 60.0
# The watcher asks again anyway, and has other things to do meanwhile.
_LOOK_TIMEOUT_S = 10.0
_CANCEL_WITHIN_S = 20
_GONE = "Invalid job id"
# `timeout` ends everything that the shell runs, even if the head is gone.
_SUBMIT = ("timeout", f"{_TIMEOUT_S:g}", "sh", "-c")
_TIMED_OUT = 124
_AND_TELL = 'job=$(sbatch --parsable) || exit; echo "$job" >"/dev/fd/$1"; echo "$job"'


class SlurmError(RuntimeError):
    """A command failed; the message has its own words."""


def ask(argv: Sequence[str], timeout_s: float = _TIMEOUT_S) -> str:
    """The output of a command."""
    return _answer(argv[0], argv, os.environ, timeout_s)


def submit(script: str, env: Mapping[str, str], tell: int) -> str:
    """The id of a new job; the descriptor ``tell`` gets it too, even if the head is killed."""
    argv = [*_SUBMIT, _AND_TELL, "sh", f"{tell}"]
    said = _answer("sbatch", argv, env, 2 * _TIMEOUT_S, script, (tell,))
    return said.strip().partition(";")[0]


def _answer(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
    given: str = "",
    pass_fds: Sequence[int] = (),
) -> str:
    try:
        done = subprocess.run(
            argv,
            check=False,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_plain(env),
            pass_fds=pass_fds,
            # Ctrl-C in the terminal is for the head.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(str(error)) from error
    if done.returncode:
        late = "it took too long" if done.returncode == _TIMED_OUT else ""
        said = done.stderr.strip() or late or f"exit code {done.returncode}"
        raise SlurmError(f"{name}: {said.removeprefix(f'{name}: ')}")
    return done.stdout


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """Without the user's settings for what squeue and sinfo show."""
    return {k: v for k, v in env.items() if not k.startswith(("SQUEUE_", "SINFO_"))}


def queue(jobs: Sequence[str], form: str) -> str:
    """squeue's lines about those of these jobs that it still knows, in any state."""
    wanted = ["--noheader", "--states=all", f"--jobs={','.join(jobs)}", f"--format={form}"]
    try:
        return ask(["squeue", *wanted], timeout_s=_LOOK_TIMEOUT_S)
    except SlurmError as error:
        if _GONE in str(error):
            return ""
        raise


def steps_of(job: str) -> list[tuple[str, str]]:
    """The id and the name of each step of a job that has begun and not ended."""
    form = ["--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
    rows = ask(["squeue", *form], timeout_s=_LOOK_TIMEOUT_S).splitlines()
    steps = [row.strip().partition(" ") for row in rows]
    # Some versions also show those that wait, as 77.TBD.
    return [(step, name.strip()) for step, _, name in steps if not step.endswith(".TBD")]


def show_job(job: str) -> str:
    """What scontrol knows about a job; empty once Slurm has forgotten it."""
    try:
        return ask(["scontrol", "--oneliner", "show", "job", job], timeout_s=_LOOK_TIMEOUT_S)
    except SlurmError as error:
        if _GONE in str(error):
            return ""
        raise


def cancel(jobs: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start ending these jobs."""
    command = ["timeout", f"{_CANCEL_WITHIN_S}", "sh", "-c", cancel_script('"$@"'), "sh", *jobs]
    # Ctrl-C in the terminal is for the head.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def cancel_script(jobs: str) -> str:
    """The shell command that ends jobs (words of a shell) at once, pending or running."""
    commands = [
        # For a pending job, a signal from scancel would wait until it starts.
        f"scancel --quiet --state=RUNNING --batch --signal=KILL {jobs}",
        # For jobs in any other state; alone, this would give running ones KillWait to go.
        f"scancel --quiet {jobs}",
    ]
    return f"{{ {'; '.join(commands)}; }} >/dev/null 2>&1"


def address_of_a_node(partition: str | None) -> str:
    """The address of a node of the partition; ANYWHERE if Slurm does not know the partition."""
    where = [] if partition is None else [f"--partition={partition}"]
    # `*` marks the default partition in other formats, but not here.
    lines = ask(["sinfo", "--noheader", "--Node", *where, "--Format=NodeAddr:255"]).split()
    return lines[0] if lines else ANYWHERE


def address_in_allocation() -> str:
    """The address of the last node of the current allocation, preferably not the head's own."""
    nodes = ask(["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]).split()
    if not nodes:
        return ANYWHERE
    shown = ask(["scontrol", "--oneliner", "show", "node", nodes[-1]])
    return next((w[9:] for w in shown.split() if w.startswith("NodeAddr=")), nodes[-1])
