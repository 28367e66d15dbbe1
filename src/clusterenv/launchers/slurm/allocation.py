"""How many steps the head's own allocation has room for. Pure: it runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CORES = "SLURM_JOB_CPUS_PER_NODE"
_GROUP = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# With these, steps share cores, or use a part of the job that the variable above says nothing of.
_COUNTED_OTHERWISE = {"--overlap", "--overcommit", "-O", "--het-group"}
_COUNTED_OTHERWISE_IN = {"SLURM_OVERLAP", "SLURM_OVERCOMMIT", "SLURM_HET_SIZE"}


@dataclass(frozen=True)
class Allocation:
    """The nodes of an allocation, as the environment of a process in it describes them."""

    cores: tuple[int, ...]
    """Of each node; empty if nothing is known."""

    @staticmethod
    def of(environment: Mapping[str, str], options: Sequence[str] = ()) -> Allocation:
        """From ``4(x2),8``; nothing is known if these options of srun count cores in other ways."""
        groups = [_GROUP.fullmatch(group) for group in environment.get(_CORES, "").split(",")]
        is_otherwise = _COUNTED_OTHERWISE & {option.partition("=")[0] for option in options}
        if is_otherwise or _COUNTED_OTHERWISE_IN & environment.keys() or None in groups:
            return Allocation(())
        return Allocation(tuple(int(g[1]) for g in groups if g for _ in range(int(g[2] or 1))))

    def room(self, cores: int | None) -> int:
        """For how many steps of so many cores there is room at most; None is for whole nodes."""
        return sum(1 if cores is None else there // cores for there in self.cores)

    def refusal(self, num_steps: int, cores: int | None) -> str:
        """Why there is no room for this many steps, and what to do; empty if there may be."""
        room = self.room(cores)
        if not self.cores or num_steps <= room:
            return ""
        if cores is not None and not room:
            most = f"{_count(len(self.cores), 'node')} of at most {_count(max(self.cores), 'core')}"
            return (
                f"the allocation has {most}: no room for a step of {_count(cores, 'core')}; "
                "ask for more, or give the launcher a smaller cpus_per_node="
            )
        there = f"{_count(len(self.cores), 'node')} ({_count(sum(self.cores), 'core')})"
        wanted = "a whole node each" if cores is None else _count(cores, "core")
        return (
            f"the allocation has {there}: no room for {_count(num_steps, 'step')} of {wanted}; "
            f"ask for more, or give the launcher nodes={room}"
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
