"""Which run a command is about, and what tells the runs of a user apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clusterenv.status.channel import Run, fetch

_MOST_CHARACTERS = 60


def describe(run: Run) -> str:
    """``pid 77, CartPole-v1, train.py --seed 3``, as far as it is known."""
    status = fetch(run)
    known = [f"pid {run.pid}", status.env if status else "", script_of(command_of(run.pid))]
    return ", ".join(word for word in known if word)


def choose_run(
    runs: Sequence[Run],
    wanted: str | None,
    command: str = "top",
    describe: Callable[[Run], str] = describe,
) -> Run:
    """The run that ``wanted`` (an id, its beginning, or a pid) names; else ValueError."""
    fitting = [
        run for run in runs if wanted is None or run.id.startswith(wanted) or str(run.pid) == wanted
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not runs:
        raise ValueError(
            f"no run of yours on this machine: `{command}` sees heads of the same user, in the "
            "same network namespace (container); run it where the head runs"
        )
    names = "; ".join(f"{run.id} ({describe(run)})" for run in fitting or runs)
    if not fitting:
        raise ValueError(f"no run {wanted!r}; there are: {names}")
    raise ValueError(f"several runs: say which with `{command} RUN`: {names}")


def command_of(pid: int) -> list[str]:
    """The words of the command that started a process; none if it is gone."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return data.rstrip(b"\0").decode(errors="replace").split("\0")


def script_of(command: Sequence[str]) -> str:
    """``/bin/python /home/me/train.py --seed 3`` → ``train.py --seed 3``, cut if it is long."""
    names = [Path(word).name if word.startswith("/") else word for word in command]
    is_python = bool(names) and names[0].startswith("python")
    line = " ".join(" ".join(names[is_python:]).split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
