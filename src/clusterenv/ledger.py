"""The record of what moved: bytes by kind of message, and every pull with its cause."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Pull:
    """A worker fetched weights."""

    time_s: float
    """Since the run began."""
    worker: str
    version: int
    cause: str
    """In the sync rule's word: ``first``, ``version`` …; ``evaluation`` for :meth:`evaluate`."""
    bytes: int
    """Of the weights alone."""


class Ledger:
    """What moved between head and workers. Written by the I/O thread, read by anyone."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bytes_by_kind: Counter[str] = Counter()
        self._pulls: list[Pull] = []

    def count(self, kind: str, num_bytes: int) -> None:
        """Bytes of a message that went through the socket."""
        self._bytes_by_kind[kind] += num_bytes

    def record_pull(self, worker: str, version: int, cause: str, num_bytes: int) -> None:
        """A worker is being sent ``version``."""
        elapsed_s = time.monotonic() - self._started
        self._pulls.append(Pull(elapsed_s, worker, version, cause, num_bytes))

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes through the socket so far, both ways, by message kind (``Weights`` …)."""
        return dict(self._bytes_by_kind)

    @property
    def pulls(self) -> list[Pull]:
        """Every pull so far, in order."""
        return list(self._pulls)

    @property
    def pulls_by_worker(self) -> dict[str, int]:
        """How often each worker has pulled."""
        return dict(Counter(pull.worker for pull in self._pulls))
