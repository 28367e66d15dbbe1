"""All that benchmarks and experiments know of the inside of a ClusterEnv."""

from collections.abc import Callable
from typing import Any

from clusterenv import ClusterEnv

Wrap = Callable[[Callable[..., Any]], Any]


def whereabouts(envs: ClusterEnv) -> list[str]:
    """Where the worker in each place runs."""
    return [envs._head.crew.reception.whereabouts(member.worker) for member in envs.roster.members]


def slots_by_place(envs: ClusterEnv) -> list[tuple[int, ...]]:
    """The slots of the worker in each place."""
    return [tuple(member.slots) for member in envs.roster.members]


def wrap_survey(envs: ClusterEnv, wrap: Wrap) -> Any:
    """What ``wrap`` makes of measuring a version's divergence; the head calls it from now on."""
    surveyor = envs._head.surveyor
    surveyor.survey = wrapped = wrap(surveyor.survey)
    return wrapped


def wrap_assembly(envs: ClusterEnv, wrap: Wrap) -> Any:
    """What ``wrap`` makes of putting fragments together; a rollout calls it from now on."""
    envs._assemble = wrapped = wrap(envs._assemble)
    return wrapped
