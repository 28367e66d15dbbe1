"""Times a worker's parts, where the head asks for it; else nothing here runs."""

from __future__ import annotations

from typing import Any

from clusterenv.stopwatch import Stopwatch
from clusterenv.wire.channel import Channel, SharedChannel
from clusterenv.worker.acting import Acting
from clusterenv.worker.rows import ArenaRows, Rows
from clusterenv.worker.stepper import Stepper


def start(
    channel: Channel, stepper: Stepper, rows: Rows | None, acting: Acting | None
) -> Stopwatch:
    """Begin to time these parts; :meth:`Stopwatch.stop` ends it."""
    watch = Stopwatch("other")
    watch.attach(channel, "recv", "idle")
    watch.attach(channel, "send", "serialise")
    if isinstance(channel, SharedChannel):
        watch.attach(channel, "leave", "serialise")
    for method in ("reset", "step", "step_for_rollout"):
        watch.attach(stepper, method, "env")
    if rows is not None:
        watch.attach(rows, "reply", "serialise")
    if isinstance(rows, ArenaRows):
        watch.attach(rows, "write", "serialise")
        watch.attach(rows, "rest", "serialise")
    if acting is not None:
        watch.attach(acting, "_pull", "pull", absorbs=("idle", "serialise"))
        # Once, when a policy is new; its imports may take seconds.
        watch.attach(acting, "_take_policy", "other")
        watch.replace(acting, "_ready", _with_timed_sampler(watch, acting._ready))
    return watch


def _with_timed_sampler(watch: Stopwatch, ready: Any) -> Any:
    """The sampler comes with the first policy: time it from then on."""
    timed: set[int] = set()

    def get_ready() -> Any:
        copy, sampler = ready()
        if id(sampler) not in timed:
            timed.add(id(sampler))
            watch.attach(sampler, "_act", "inference")
            watch.attach(sampler, "_values", "inference")
        return copy, sampler

    return get_ready
