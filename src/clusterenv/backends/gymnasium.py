"""Single Gymnasium envs, from an id or from callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]
EnvWrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class RegisteredBackend:
    """Envs of one registered kind.

    The spec itself travels, so that the worker needs no registration of its own.
    """

    spec: EnvSpec
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[EnvWrapper, ...] = ()

    def build(self, slots: Sequence[int]) -> list[gymnasium.Env[Any, Any]]:
        """One env per slot."""
        return [self._make() for _ in slots]

    def _make(self) -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(self.spec, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def for_slots(self, slots: Sequence[int]) -> RegisteredBackend:
        """The same for every worker."""
        return self


@dataclass(frozen=True)
class CallableBackend:
    """Envs from callables: one for each slot."""

    factories: dict[int, EnvFactory]
    wrappers: tuple[EnvWrapper, ...] = ()

    def build(self, slots: Sequence[int]) -> list[gymnasium.Env[Any, Any]]:
        """One env per slot."""
        return [self._make(self.factories[slot]) for slot in slots]

    def _make(self, factory: EnvFactory) -> gymnasium.Env[Any, Any]:
        env = factory()
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    def for_slots(self, slots: Sequence[int]) -> CallableBackend:
        """Only the callables of these slots."""
        return replace(self, factories={slot: self.factories[slot] for slot in slots})
