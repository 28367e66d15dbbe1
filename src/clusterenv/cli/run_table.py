"""Two snapshots of a run → the table that `top` shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterenv.cli.tables import Table, short
from clusterenv.wire.status import Status, WorkerStatus
from clusterenv.wire.status_channel import Run

_HEADINGS = (
    "worker", "host", "pid", "state",
    "slots", "steps/s", "version", "lag", "divergence", "pulls", "restarts",
)  # fmt: skip


def run_table(before: Status | None, now: Status, at_most: int | None = None) -> Table:
    """Rates are those between the two; of the whole run so far where there is only one.

    Of more than ``at_most`` workers, those that most need a look: not ready, or slow.
    """
    elapsed_s = max(1e-9, now.uptime_s - (before.uptime_s if before else 0.0))
    rates = _rates(before, now, elapsed_s)
    shown = list(zip(now.workers, rates, strict=True))
    if at_most is not None and len(shown) > at_most:
        shown = sorted(shown, key=lambda each: (each[0].state == "ready", each[1]))[:at_most]
    rows = [_row(worker, rate, now.version) for worker, rate in shown]
    hidden = len(now.workers) - len(shown)
    notes = [f"… and {hidden} more workers, ready and faster"] if hidden else []
    total = (
        f"run {now.run}  head {now.host} pid {now.pid}  up {_duration(now.uptime_s)}  "
        f"{len(now.workers)} workers  {now.num_envs} envs  {short(sum(rates))} steps/s  "
        f"version {now.version}"
    )
    notes += _notes(before, now, elapsed_s)
    return Table(total, _HEADINGS, rows, notes, text_columns=4)


def _rates(before: Status | None, now: Status, elapsed_s: float) -> list[float]:
    if before is None:
        return [worker.rows / elapsed_s for worker in now.workers]
    # A worker that was not there yet has no rate: its place's rows are its predecessor's.
    earlier = {worker.worker: worker.rows for worker in before.workers}
    return [(w.rows - earlier.get(w.worker, w.rows)) / elapsed_s for w in now.workers]


def _row(worker: WorkerStatus, rate: float, version: int) -> tuple[str, ...]:
    held = worker.held
    return (
        worker.worker,
        worker.host or "-",
        str(worker.pid or "-"),
        worker.state,
        str(worker.slots),
        short(rate),
        "-" if held is None else str(held),
        "-" if held is None else str(version - held),
        "-" if worker.divergence is None else f"{worker.divergence:.2g}",
        str(worker.pulls),
        str(worker.restarts),
    )


def _notes(before: Status | None, now: Status, elapsed_s: float) -> list[str]:
    total = sum(now.bytes_by_kind.values())
    rate = (total - (sum(before.bytes_by_kind.values()) if before else 0)) / elapsed_s
    largest = sorted(now.bytes_by_kind.items(), key=lambda kind: -kind[1])[:4]
    kinds = ", ".join(f"{kind} {short(size)}B" for kind, size in largest)
    causes = ", ".join(f"{cause} {n}" for cause, n in sorted(now.pulls_by_cause.items()))
    return [
        f"socket: {short(total)}B ({short(rate)}B/s): {kinds or 'nothing yet'}",
        f"sync: {short(now.sync_bytes)}B, {short(now.bytes_avoided)}B avoided; "
        f"pulls: {causes or 'none'}",
    ]


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds) // 60 % 60, int(seconds) // 3600
    return f"{hours}:{minutes:02}:{int(seconds) % 60:02}"


def choose_run(runs: Sequence[Run], wanted: str | None) -> Run:
    """The run that ``wanted`` (an id, its beginning, or a pid) means; ValueError says what else."""
    fitting = [
        run for run in runs if wanted is None or run.id.startswith(wanted) or str(run.pid) == wanted
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not runs:
        raise ValueError(
            "no run of yours on this machine: `top` sees heads of the same user, in the same "
            "network namespace (container); run it where the head runs"
        )
    names = ", ".join(f"{run.id} (pid {run.pid})" for run in fitting or runs)
    if not fitting:
        raise ValueError(f"no run {wanted!r}; there are: {names}")
    raise ValueError(f"several runs: say which with `top RUN`: {names}")
