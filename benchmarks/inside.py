"""All that benchmarks and experiments know of the inside of a ClusterEnv."""

from collections.abc import Callable
from typing import Any

from clusterenv import ClusterEnv
from clusterenv.head.profiler import Profiler

Wrap = Callable[[Callable[..., Any]], Any]


def whereabouts(envs: ClusterEnv) -> list[str]:
    """Where each host of a remote fleet runs."""
    return [host.whereabouts() for host in envs._session.fleet.hosts]


def slots_by_host(envs: ClusterEnv) -> dict[str, range]:
    """The slots of each host."""
    return {host.name: host.slots for host in envs._session.fleet.hosts}


def wrap_survey(envs: ClusterEnv, wrap: Wrap) -> Any:
    """What ``wrap`` makes of measuring a version's divergence; the head calls it from now on."""
    drift = envs._session.drift
    drift.measure = wrapped = wrap(drift.measure)
    return wrapped


def wrap_assembly(envs: ClusterEnv, wrap: Wrap) -> Any:
    """What ``wrap`` makes of putting fragments together; a rollout calls it from now on."""
    policies = envs._policies
    policies._assemble = wrapped = wrap(policies._assemble)
    return wrapped


def times_restarted(envs: ClusterEnv, slot: int) -> int:
    """How often a slot has started over."""
    return envs._session.recovery._incarnations.get(slot, 0)


def profiler(envs: ClusterEnv) -> Profiler:
    """As ``envs.profile()``, which refuses to begin between ``recv`` and ``send``."""
    return Profiler(envs._session)
