"""What hosts need from a Ray cluster, and the message if it does not have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_MAX_NODES_NAMED = 8
_MAX_ERROR_CHARACTERS = 600

Resources = Mapping[str, float]


@dataclass(frozen=True)
class Needs:
    """What each host needs, and whether each needs a node of its own."""

    cpus: float
    gpus: float
    memory: int
    resources: Resources
    spread: bool
    runtime_env: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        amounts = {"cpus_per_node": self.cpus, "gpus_per_node": self.gpus}
        amounts |= {"memory_per_node": self.memory, **self.resources}
        for name, amount in amounts.items():
            if amount < 0:
                raise ValueError(f"{name}={amount!r} must not be negative; leave it out for none")
        if not self.cpus:
            raise ValueError(
                "cpus_per_node=0: a host runs one worker per CPU; say how many, at least 0.01"
            )

    @property
    def strategy(self) -> str:
        """How Ray should place the hosts, in its own word."""
        return "STRICT_SPREAD" if self.spread else "PACK"

    @cached_property
    def bundle(self) -> dict[str, float]:
        """A host's share of a placement group."""
        named = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {name: float(of) for name, of in {**named, **self.resources}.items() if of}

    @property
    def options(self) -> dict[str, Any]:
        """The options of its actor."""
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "memory": self.memory or None,
            "resources": dict(self.resources),
            "runtime_env": dict(self.runtime_env) if self.runtime_env else None,
        }

    def shortage(self, count: int, nodes: Iterable[Mapping[str, Any]], free: Resources) -> str:
        """What was requested, and what there is."""
        named = [f"{n['NodeManagerHostname']}: {self._amounts(n['Resources'])}" for n in nodes]
        more = ["…"] if len(named) > _MAX_NODES_NAMED else []
        apart = ", each on a node of its own" if self.spread else ""
        return (
            f"asked for {count} hosts with {self._amounts(self.bundle)} each{apart}; the cluster "
            f"has {len(named)} nodes ("
            f"{'; '.join(named[:_MAX_NODES_NAMED] + more)}), and of all that {self._amounts(free)} "
            "free; see: ray status"
        )

    def _amounts(self, resources: Resources) -> str:
        return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in self.bundle)


def in_one_line(error: Exception) -> str:
    """Ray's words, without its line breaks."""
    words = " ".join(str(error).split())
    return words if len(words) <= _MAX_ERROR_CHARACTERS else f"{words[:_MAX_ERROR_CHARACTERS]} …"
