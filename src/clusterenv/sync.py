"""Sync rules: does a worker pull the newest weights now? Pure decisions, made on the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

FIRST = "first"
VERSION = "version"


@dataclass(frozen=True)
class News:
    """What a worker knows when it decides."""

    held: int
    """The version it holds; 0 for none."""
    newest: int
    """The newest version that it has heard of."""

    @property
    def lag(self) -> int:
        """How many versions the worker is behind."""
        return self.newest - self.held


class SyncRule(Protocol):
    """Travels to the workers, and decides there."""

    def cause_to_pull(self, news: News) -> str | None:
        """Why the worker pulls now, in a word for the ledger; None if it does not."""


@dataclass(frozen=True)
class EveryNth:
    """Pull when ``n`` or more versions behind."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"EveryNth(n={self.n}): n must be at least 1")

    def cause_to_pull(self, news: News) -> str | None:
        """The first version in any case, then every n-th."""
        if news.held == 0 and news.newest > 0:
            return FIRST
        return VERSION if news.lag >= self.n else None


@dataclass(frozen=True)
class EveryVersion(EveryNth):
    """Always act with the newest version."""

    n: int = 1
