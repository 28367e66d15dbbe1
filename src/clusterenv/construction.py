"""What the user passed to the constructor → a backend, a launcher, a number of workers."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from clusterenv.backends.base import Backend
from clusterenv.backends.gymnasium import (
    CallableBackend,
    EnvFactory,
    EnvWrapper,
    RegisteredBackend,
)
from clusterenv.launchers.base import Launcher
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.launchers.local import LocalLauncher
from clusterenv.limits import Limits
from clusterenv.policies.base import Policy
from clusterenv.sync import EveryVersion, SyncRule
from clusterenv.wire.addresses import Network

Env = str | EnvSpec | EnvFactory | Sequence[EnvFactory] | Backend


def choose_backend(
    env: Env, num_envs: int | None, wrappers: Sequence[EnvWrapper], kwargs: dict[str, Any]
) -> tuple[Backend, int, EnvSpec | None]:
    """The backend, the number of envs, and the spec where ``env`` is an id."""
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs={num_envs} must be at least 1")
    _refuse_moved(kwargs)
    if isinstance(env, str | EnvSpec):
        _refuse_misspelt(kwargs)
        spec = _spec_of(env) if isinstance(env, str) else env
        return (
            RegisteredBackend(spec, kwargs, tuple(wrappers)),
            num_envs or 1,
            _vector_spec(spec, kwargs, num_envs or 1),
        )
    if kwargs:
        raise TypeError(
            f"unexpected arguments {sorted(kwargs)}: arguments for the env go with a Gymnasium id; "
            f"ClusterEnv itself takes {', '.join(_own_arguments())}"
        )
    if isinstance(env, Backend):
        if wrappers:
            raise TypeError("wrappers= goes with an id or callables; a backend wraps its own envs")
        return env, num_envs or 1, None
    if callable(env):
        return _from_callables([env] * (num_envs or 1), wrappers)
    factories: list[Any] = list(env) if isinstance(env, Iterable) else [env]
    if num_envs not in (None, len(factories)):
        raise ValueError(f"num_envs={num_envs}, but {len(factories)} callables were given")
    return _from_callables(factories, wrappers)


def _spec_of(env: str) -> EnvSpec:
    """The spec of an id, or of ``module:id``, whose module is imported as by ``gymnasium.make``."""
    module, _, name = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def _from_callables(
    factories: list[EnvFactory], wrappers: Sequence[EnvWrapper]
) -> tuple[Backend, int, None]:
    if not factories or not all(callable(factory) for factory in factories):
        raise TypeError(
            "env must be a Gymnasium id, a callable, a non-empty list of callables, or a backend; "
            f"got {factories!r:.200}"
        )
    return CallableBackend(dict(enumerate(factories)), tuple(wrappers)), len(factories), None


def _vector_spec(spec: EnvSpec, kwargs: dict[str, Any], num_envs: int) -> EnvSpec:
    """The spec as ``gymnasium.make_vec`` would record it."""
    recorded = copy.deepcopy(spec)
    recorded.kwargs = {**recorded.kwargs, **kwargs, "num_envs": num_envs}
    return recorded


_GROUPS: dict[str, type[Limits] | type[Network]] = {"limits": Limits, "network": Network}


def _places_in_groups() -> dict[str, str]:
    """How to pass what is a field of a group: ``port`` → ``network=Network(port=…)``."""
    return {
        field.name: f"{group}={kind.__name__}({field.name}=…)"
        for group, kind in _GROUPS.items()
        for field in fields(kind)
    }


def _refuse_moved(kwargs: dict[str, Any]) -> None:
    if "min_workers" in kwargs:
        raise TypeError("min_workers is min_hosts now: hosts are what comes late or is lost")
    for name, place in _places_in_groups().items():
        if name in kwargs:
            group = place.partition("=")[0]
            raise TypeError(f"{name} is part of {group} now: {place}")


def _refuse_misspelt(kwargs: dict[str, Any]) -> None:
    places = _places_in_groups()
    for name in kwargs:
        close = difflib.get_close_matches(name, [*_own_arguments(), *places], n=1, cutoff=0.85)
        if close:
            right = places.get(close[0], repr(close[0]))
            raise TypeError(f"unexpected argument {name!r}: did you mean {right}?")


def _own_arguments() -> list[str]:
    from clusterenv.env import ClusterEnv

    parameters = inspect.signature(ClusterEnv).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]


def choose_num_workers(num_workers: int | None, num_envs: int) -> int | None:
    """As asked, but no more than envs; None if nobody asked."""
    if num_workers is None:
        return None
    if num_workers < 1:
        raise ValueError(f"num_workers={num_workers} must be at least 1")
    return min(num_workers, num_envs)


def choose_batch_size(batch_size: int | None, num_envs: int) -> int:
    """As asked, if that can be; else all envs."""
    if batch_size is None:
        return num_envs
    if not 1 <= batch_size <= num_envs:
        raise ValueError(f"batch_size={batch_size} must be between 1 and num_envs={num_envs}")
    return batch_size


def choose_min_hosts(min_hosts: int | None, launcher: Launcher) -> int | None:
    """As asked, if that can be; None for all."""
    if min_hosts is not None and not 1 <= min_hosts <= max(1, launcher.num_hosts):
        raise ValueError(
            f"min_hosts={min_hosts} must be between 1 and the number of hosts, which is "
            f"{max(1, launcher.num_hosts)} with this launcher"
        )
    return min_hosts


def choose_launcher(launcher: Launcher | str, shared_memory: bool = True) -> Launcher:
    """A launcher object from a name, or as it is; with host processes if no memory is shared."""
    if not isinstance(launcher, str):
        if not shared_memory and isinstance(launcher, LocalLauncher) and launcher.num_hosts == 0:
            return launcher.with_hosts(1)
        return launcher
    if launcher not in _LAUNCHERS:
        raise ValueError(
            f"launcher={launcher!r} is none of {sorted(_LAUNCHERS)}; other launchers are "
            "objects, such as clusterenv.SlurmLauncher(…)"
        )
    return choose_launcher(_LAUNCHERS[launcher](), shared_memory)


_LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "local": LocalLauncher,
    "in-process": InProcessLauncher,
}


def choose_sync_rule(rule: SyncRule | None) -> SyncRule:
    """As given, if it has all that a rule must have; else every version."""
    if rule is None:
        return EveryVersion()
    if isinstance(rule, type):
        raise TypeError(f"sync={rule.__name__} is a class; pass an object: sync={rule.__name__}(…)")
    missing = [name for name in _RULE_MEMBERS if not hasattr(rule, name)]
    if missing:
        raise TypeError(
            f"sync={type(rule).__name__}(…) is no sync rule, it lacks {', '.join(missing)}: see "
            "clusterenv.SyncRule; a rule that measures nothing has rows = 0, "
            'measure = "divergence" and threshold = 0.0'
        )
    return rule


_RULE_MEMBERS = ("cause_to_pull", "rows", "measure", "threshold")


class AsPolicy:
    """Makes policies of modules; the last one is remembered, so that it stays the same object."""

    def __init__(self) -> None:
        self._wrapped: tuple[Any, Policy] | None = None

    def __call__(self, policy: Any) -> Policy:
        """``policy`` itself, or what acts with the module that it is."""
        if hasattr(policy, "act"):
            return policy  # type: ignore[no-any-return]
        if self._wrapped is None or self._wrapped[0] is not policy:
            self._wrapped = policy, wrap_module(policy)
        return self._wrapped[1]


def wrap_module(module: Any) -> Policy:
    """A policy from a ``torch.nn.Module``; TypeError if it is none."""
    if not (hasattr(module, "state_dict") and callable(module)):
        raise TypeError(
            f"{module!r:.80} is no policy: pass a clusterenv.Policy, or a torch.nn.Module "
            "that returns a torch.distributions object"
        )
    from clusterenv.policies.torch import TorchPolicy

    return TorchPolicy(module)
