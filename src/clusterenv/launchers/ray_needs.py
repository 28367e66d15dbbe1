"""What workers need of a Ray cluster, and what is said when it does not have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_MAX_NODES_NAMED = 8
_MAX_ERROR_CHARACTERS = 600

Resources = Mapping[str, float]


@dataclass(frozen=True)
class Needs:
    """What each worker needs, and how workers are to be spread."""

    num_cpus: float
    num_gpus: float
    memory: int
    resources: Resources
    strategy: str
    runtime_env: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy={self.strategy!r} must be one of {', '.join(STRATEGIES)}")
        if not self.bundle or min(self.bundle.values()) < 0:
            raise ValueError(
                f"a worker cannot need {self.bundle or 'nothing'}; num_cpus=0.01 takes next to it"
            )

    @cached_property
    def bundle(self) -> dict[str, float]:
        """Its share of a placement group."""
        named = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory}
        return {name: float(of) for name, of in {**named, **self.resources}.items() if of}

    @property
    def options(self) -> dict[str, Any]:
        """Those of its actor."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "memory": self.memory or None,
            "resources": dict(self.resources),
            "runtime_env": dict(self.runtime_env) if self.runtime_env else None,
        }

    def shortage(self, count: int, nodes: Iterable[Mapping[str, Any]], free: Resources) -> str:
        """What was asked for, and what there is."""
        named = [f"{n['NodeManagerHostname']}: {self._amounts(n['Resources'])}" for n in nodes]
        more = ["…"] if len(named) > _MAX_NODES_NAMED else []
        return (
            f"asked for {count} workers with {self._amounts(self.bundle)} each, strategy "
            f"{self.strategy}; the cluster has {len(named)} nodes ("
            f"{'; '.join(named[:_MAX_NODES_NAMED] + more)}), and of all that {self._amounts(free)} "
            "free; see: ray status"
        )

    def _amounts(self, resources: Resources) -> str:
        return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in self.bundle)


def in_one_line(error: Exception) -> str:
    """Ray's words, without its line breaks."""
    words = " ".join(str(error).split())
    return words if len(words) <= _MAX_ERROR_CHARACTERS else f"{words[:_MAX_ERROR_CHARACTERS]} …"
