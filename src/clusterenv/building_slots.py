"""The slot whose env is being built, for factories and wrappers that distinguish slots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class BuildingSite:
    """An env that is being built."""

    slot: int
    was_asked: bool = False
    """Whether a factory or wrapper has asked for its slot."""


_site: ContextVar[BuildingSite | None] = ContextVar("clusterenv_site", default=None)
_purpose: ContextVar[str] = ContextVar("clusterenv_purpose", default="")


def current_slot() -> int:
    """The slot whose env is being built, in an env factory or a wrapper.

    With a :class:`clusterenv.VectorBackend` it is the first slot of the worker. Slots are counted
    over all workers and hosts, and a slot keeps its number when its worker is replaced.

    Raises:
        RuntimeError: If ClusterEnv is not building an env.

    Example:
        >>> ClusterEnv(  # doctest: +SKIP
        ...     "CartPole-v1", 8, wrappers=[lambda env: Monitor(env, f"log-{current_slot()}.csv")]
        ... )
    """
    site = _site.get()
    if site is None:
        raise RuntimeError(
            "current_slot() is known while ClusterEnv builds an env: call it in the env factory or "
            "in a wrapper, and keep the number if you need it later"
        )
    site.was_asked = True
    return site.slot


@contextlib.contextmanager
def building(slot: int) -> Iterator[BuildingSite]:
    """Tell :func:`current_slot` the slot."""
    site = BuildingSite(slot)
    token = _site.set(site)
    try:
        yield site
    finally:
        _site.reset(token)


@contextlib.contextmanager
def building_for(purpose: str) -> Iterator[None]:
    """Note that the envs built now are not those that ``step`` uses."""
    token = _purpose.set(purpose)
    try:
        yield
    finally:
        _purpose.reset(token)


def name_of(slot: int) -> str:
    """A name that distinguishes the files of this env from those of all others."""
    purpose = _purpose.get()
    return f"slot-{slot}-{purpose}" if purpose else f"slot-{slot}"
