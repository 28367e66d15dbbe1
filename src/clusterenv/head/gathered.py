"""What has come for a session besides rows and fragments: errors, warnings, values."""

from __future__ import annotations

import builtins
import pickle
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.errors import ProtocolError
from clusterenv.head.publisher import Publication
from clusterenv.host.events import WorkerWarned
from clusterenv.policies.copy import PolicyCopy
from clusterenv.rollout import DISAGREEMENT

_MOST_WARNINGS = 1_000
_LONGEST_WARNING = 10_000


class Gathered:
    """What has come besides rows and fragments, and was not taken yet."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, type[Warning]]] = []
        self.clear()

    def clear(self) -> None:
        """Drop everything but the warnings, which are still shown."""
        self.errors: list[BaseException] = []
        self.values: dict[int, Any] = {}
        # By host: for each of its workers, where its time went.
        self.profiles: dict[str, list[Any]] = {}
        # By first slot: some slots, and what the policy did there or acted on.
        self.acted: dict[int, tuple[Sequence[int], dict[str, Any]]] = {}
        self.acted_on: dict[int, tuple[Sequence[int], list[Array]]] = {}

    def fail(self, error: BaseException) -> None:
        """Keep an error for the next call of :meth:`raise_errors`."""
        self.errors.append(error)

    def put_values(self, slots: Sequence[int], values: Sequence[Any]) -> None:
        """Take what a call returned in these slots; nothing if attributes were set."""
        self.values.update(zip(slots, values, strict=False))

    def take_values(self, slots: Sequence[int]) -> tuple[Any, ...]:
        """What the finished call returned, in the order of ``slots``."""
        values, self.values = self.values, {}
        return tuple(values[slot] for slot in slots if slot in values)

    def put_profile(self, host: str, seconds: list[Any]) -> None:
        """Take where the time of each worker of a host went."""
        self.profiles[host] = seconds

    def begin_profiles(self) -> None:
        """Prepare for asking hosts anew where their time goes."""
        self.profiles.clear()

    def has_profiles_of(self, hosts: Iterable[str]) -> bool:
        """Whether all of these have answered."""
        return self.profiles.keys() >= set(hosts)

    def take_profiles(self) -> list[Any]:
        """Where the time of each worker went, for all hosts."""
        profiles, self.profiles = self.profiles, {}
        return [seconds for answer in profiles.values() for seconds in answer]

    def warn(self, warned: WorkerWarned) -> None:
        """Keep a worker's warning."""
        if len(self.warnings) < _MOST_WARNINGS:
            said = f"{warned.worker}: {warned.text[:_LONGEST_WARNING]}"
            self.warnings.append((said, _warning_class(warned.category)))

    def raise_errors(self) -> None:
        """Issue the warnings, and raise the first error; a filter may turn warnings into errors."""
        warned, self.warnings = self.warnings, []
        raised, self.errors = self.errors, []
        errors: list[BaseException] = []
        for text, category in warned:
            try:
                warnings.warn(text, category, stacklevel=5)
            except Warning as error:
                errors.append(error)
        if wrong := errors + raised:
            raise wrong[0]

    def observations_of(self, slots: Sequence[int]) -> list[Array]:
        """The observations that the policy acted on in these slots."""
        for known, leaves in self.acted_on.values():
            if known[0] <= slots[0] <= known[-1]:
                start = known.index(slots[0])
                return [leaf[start : start + len(slots)] for leaf in leaves]
        raise LookupError(f"nobody asked a policy to act in slots {slots}")

    def begin_acting(self) -> None:
        """Prepare for a policy acting in all slots."""
        self.acted_on.clear()

    def put_acted_on(self, slots: Sequence[int], leaves: list[Array]) -> None:
        """Keep what it acts on in some of them."""
        self.acted_on[slots[0]] = slots, leaves

    def put_acted(self, slots: Sequence[int], acted: dict[str, Any]) -> None:
        """Take what the policy did in these slots."""
        self.acted[slots[0]] = slots, acted

    def take_acted(self, num_envs: int) -> Any:
        """What the policy did in all slots; None if all were lost."""
        acted, self.acted = self.acted, {}
        return join_acted(acted, num_envs) if acted else None


def join_acted(acted: dict[int, tuple[Sequence[int], Any]], num_envs: int) -> Any:
    """What the policy did in all slots, with zeros for those that were lost."""
    parts = [(list(slots), tree) for slots, tree in acted.values()]

    def join(trees: list[Any]) -> Any:
        first = trees[0]
        if isinstance(first, dict):
            return {key: join([tree[key] for tree in trees]) for key in first}
        if isinstance(first, tuple):
            return tuple(join(list(column)) for column in zip(*trees, strict=True))
        whole = np.zeros((num_envs, *first.shape[1:]), first.dtype)
        for (slots, _), array in zip(parts, trees, strict=True):
            whole[slots] = array
        return whole

    try:
        return join([tree for _, tree in parts])
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(DISAGREEMENT) from error


def acted_nowhere(newest: Publication, observations: Any, num_envs: int) -> Any:
    """What :func:`join_acted` would return, all zeros, for when every slot was lost."""
    # Only the policy knows the names, dtypes and shapes of its outputs.
    copy = PolicyCopy(pickle.loads(newest.policy.policy), newest.policy.layout)
    copy.take(newest.version, newest.snapshot.vector)
    acted = copy.policy.act(observations, None, None)
    version = np.zeros(num_envs, np.int64)
    return _zeros({"action": acted.actions, "version": version, **acted.outputs})


def _zeros(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _zeros(value) for key, value in tree.items()}
    return tuple(map(_zeros, tree)) if isinstance(tree, tuple) else np.zeros_like(tree)


def _warning_class(name: str) -> type[Warning]:
    kind = getattr(builtins, name, UserWarning)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
