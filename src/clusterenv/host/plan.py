"""What a host is to run: told by the head, the same here and on another machine."""

from __future__ import annotations

import msgspec


class WorkerLimits(msgspec.Struct, frozen=True):
    """How long workers may take, in seconds, and how often one may be replaced."""

    startup_timeout_s: float
    step_timeout_s: float
    restart_timeout_s: float
    max_restarts_per_minute: int


class Plan(msgspec.Struct, frozen=True):
    """Which envs to build. ``backend`` and ``sync_rule`` are pickled: from the head downwards is
    the one direction in which pickle travels."""

    first_slot: int
    num_slots: int
    backend: bytes
    sync_rule: bytes
    autoreset_mode: str
    trusted: bool
    search_path: tuple[str, ...] = ()
    working_directory: str = ""

    @property
    def slots(self) -> range:
        """The slots of the host, which are neighbours."""
        return range(self.first_slot, self.first_slot + self.num_slots)


class Spaces(msgspec.Struct, frozen=True):
    """The spaces that all envs of the run agree on, packed."""

    observation: bytes
    action: bytes
