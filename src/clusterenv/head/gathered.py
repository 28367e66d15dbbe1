"""What has come for a session besides rows and fragments: errors, warnings, values."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterenv.arrays import Array
from clusterenv.host.events import WorkerWarned

_MOST_WARNINGS = 1_000
_LONGEST_WARNING = 10_000


class Gathered:
    """What has come besides rows and fragments, and was not taken yet."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, type[Warning]]] = []
        self.clear()

    def clear(self) -> None:
        """Nobody wants it; warnings are shown all the same."""
        self.errors: list[BaseException] = []
        self.values: dict[int, Any] = {}
        # By host: of each of its workers, what its time went to.
        self.profiles: dict[str, list[Any]] = {}
        # By first slot: some slots, and what the policy did there, or acted on.
        self.acted: dict[int, tuple[Sequence[int], dict[str, Any]]] = {}
        self.acted_on: dict[int, tuple[Sequence[int], list[Array]]] = {}

    def warn(self, warned: WorkerWarned) -> None:
        """A worker has warned of something."""
        if len(self.warnings) < _MOST_WARNINGS:
            said = f"{warned.worker}: {warned.text[:_LONGEST_WARNING]}"
            self.warnings.append((said, _warning_class(warned.category)))

    def raise_errors(self) -> None:
        """Issue the warnings, and raise the first error; a filter may make errors of warnings."""
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
        """What the policy acted on there."""
        for known, leaves in self.acted_on.values():
            if known[0] <= slots[0] <= known[-1]:
                start = known.index(slots[0])
                return [leaf[start : start + len(slots)] for leaf in leaves]
        raise LookupError(f"nobody asked a policy to act in slots {slots}")


def join_acted(acted: dict[int, tuple[Sequence[int], Any]], num_envs: int) -> Any:
    """What the policy did in all slots; nothing in those that were lost."""
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

    return join([tree for _, tree in parts])


def _warning_class(name: str) -> type[Warning]:
    kind = getattr(builtins, name, UserWarning)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
