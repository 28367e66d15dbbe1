"""Sync rules: does a worker pull the newest weights now? Pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SyncRule(Protocol):
    """Travels to the workers, and decides there."""

    def should_pull(self, held: int, newest: int) -> bool:
        """Whether a worker that holds version ``held`` (0: none) pulls ``newest``."""


@dataclass(frozen=True)
class EveryVersion:
    """Always act with the newest version."""

    def should_pull(self, held: int, newest: int) -> bool:
        """Whenever the worker is behind."""
        return held < newest
