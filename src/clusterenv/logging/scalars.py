"""Rollouts and the ledger as named numbers, with CleanRL's names. Pure: nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from clusterenv.rollout import Fragment
from clusterenv.sync.exports import cluster_totals, summary
from clusterenv.sync.ledger import Ledger

Episode = tuple[float, int]
"""The return and the length of an episode that has ended."""


def fragment_scalars(fragment: Fragment, newest: int) -> list[dict[str, float]]:
    """One dict for each episode that ended, and one for the version that acted.

    Args:
        fragment: A fragment or a rollout.
        newest: The newest version at that time: ``envs.version``.

    Returns:
        ``charts/episodic_return`` and ``charts/episodic_length`` of each episode; then
        ``charts/version`` and ``charts/version_lag``.
    """
    episodes = [episode_scalars(episode) for episode in episodes_of(fragment)]
    return [*episodes, version_scalars(newest, lag_of(fragment, newest))]


def ledger_scalars(ledger: Ledger) -> dict[str, float]:
    """What a ledger says by now.

    Returns:
        ``sync/…``: what was said about weights, such as ``sync/pulls``; ``cluster/losses``: the
        workers and hosts lost so far; ``cluster/socket_bytes``: all bytes through the socket.
    """
    synced = {f"sync/{name}": value for name, value in summary(ledger).items()}
    return synced | {f"cluster/{name}": value for name, value in cluster_totals(ledger).items()}


def loss_scalars(values: Mapping[str, float]) -> dict[str, float]:
    """``value_loss`` → ``losses/value_loss``; the learning rate is one of the charts."""
    return {
        f"{'charts' if name == 'learning_rate' else 'losses'}/{name}": value
        for name, value in values.items()
    }


def episode_scalars(episode: Episode) -> dict[str, float]:
    """The numbers of one episode."""
    episodic_return, length = episode
    return {"charts/episodic_return": episodic_return, "charts/episodic_length": length}


def version_scalars(version: int, lag: int) -> dict[str, float]:
    """The newest version, and how many versions older the one that acted was."""
    return {"charts/version": version, "charts/version_lag": lag}


def episodes_of(fragment: Fragment) -> list[Episode]:
    """The episodes that ended."""
    ended = fragment.episodes
    pairs: Iterable[tuple[Any, Any]] = zip(ended.returns, ended.lengths, strict=True)
    return [(float(episodic_return), int(length)) for episodic_return, length in pairs]


def ends_of(fragment: Fragment) -> list[int]:
    """At which of its env steps, counted from 1, each episode ended: no two at the same one."""
    finals, width = fragment.finals, len(fragment.slots)
    places = zip(finals.steps, finals.columns, strict=True)
    return [int(step) * width + int(column) + 1 for step, column in places]


def spread(count: int, steps: int) -> list[int]:
    """So many places among ``steps`` env steps, evenly, the last of them at the end."""
    return [int(steps) * place // count for place in range(1, count + 1)]


def steps_of(fragment: Fragment) -> int:
    """How many env steps it has; not ``rewards.size``, which tensors do not have."""
    return fragment.num_steps * len(fragment.slots)


def lag_of(fragment: Fragment, newest: int) -> int:
    """How many versions older than ``newest`` the oldest one that acted was."""
    return newest - int(fragment.versions.min())


def hyperparameters_of(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass, or the items of a mapping, by name; None has none."""
    if settings is None:
        return {}
    if is_dataclass(settings) and not isinstance(settings, type):
        return asdict(settings)
    if isinstance(settings, Mapping):
        return {str(name): value for name, value in settings.items()}
    raise TypeError(
        f"hyperparameters are a dataclass or a mapping, not {type(settings).__name__}: "
        "pass vars(args) for an argparse.Namespace"
    )
