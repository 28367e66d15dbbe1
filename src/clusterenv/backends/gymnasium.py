"""Single Gymnasium envs, from an id or from callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordVideo

from clusterenv.building_slots import building, name_of

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]
EnvWrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


def _build(slot: int, make: EnvFactory, wrappers: Sequence[EnvWrapper]) -> gymnasium.Env[Any, Any]:
    with building(slot):
        env = make()
    _refuse_what_is_no_env(env)
    for wrapper in wrappers:
        with building(slot) as site:
            wrapped = wrapper(env)
            if not site.was_asked:
                _keep_videos_apart(wrapped, env, name_of(slot))
            env = wrapped
    return env


def _refuse_what_is_no_env(made: Any) -> None:
    if made is None:
        raise TypeError("the callable returned None: it must return the env that it makes")
    if hasattr(made, "possible_agents") and not isinstance(made, gymnasium.Env):
        raise TypeError(
            f"{type(made).__name__} is an env of PettingZoo: pass a callable that returns it in a "
            "clusterenv.adapters.pettingzoo.PettingZooEnv"
        )


def _keep_videos_apart(
    wrapped: gymnasium.Env[Any, Any], inner: gymnasium.Env[Any, Any], name: str
) -> None:
    """Give each slot's videos a name: one wrapper for all slots would write to the same files."""
    while wrapped is not inner and isinstance(wrapped, gymnasium.Wrapper):
        if isinstance(wrapped, RecordVideo):
            wrapped.name_prefix += f"-{name}"
        wrapped = wrapped.env


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
        return [_build(slot, self._make, self.wrappers) for slot in slots]

    def rendering(self) -> RegisteredBackend:
        """The same envs with rendering."""
        return replace(self, kwargs={**self.kwargs, "render_mode": "rgb_array"})

    def _make(self) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(self.spec, **self.kwargs)

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
        return [_build(slot, self.factories[slot], self.wrappers) for slot in slots]

    def for_slots(self, slots: Sequence[int]) -> CallableBackend:
        """Only the callables of these slots."""
        return replace(self, factories={slot: self.factories[slot] for slot in slots})
