"""How a worker stands with its head."""

from __future__ import annotations

import enum


class Contact(enum.Enum):
    """How a worker's one connection to its head is."""

    NOT_YET = enum.auto()
    THERE = enum.auto()
    BROKEN = enum.auto()
    """For good: what was under way is lost, and the head gives the worker's place to another."""
    REFUSED = enum.auto()
    """Whoever listens there does not take this worker's key, or has another than the head's."""
