"""Chooses a backend, a launcher and a number of workers from the constructor's arguments."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend, ThreadedBackend
from clusterenv.backends.gymnasium import (
    CallableBackend,
    EnvFactory,
    EnvWrapper,
    RegisteredBackend,
)
from clusterenv.counts import check_count, check_part
from clusterenv.launchers.base import Launcher
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.launchers.local import LocalLauncher
from clusterenv.limits import Limits
from clusterenv.platforms import check_head, check_workers
from clusterenv.policies.encoding import check_encoding
from clusterenv.settings import Settings
from clusterenv.sync import EveryVersion, SyncRule
from clusterenv.wire.addresses import Network

_Group = TypeVar("_Group", Limits, Network)
Wrappers = EnvWrapper | Sequence[EnvWrapper] | None
Env = str | EnvSpec | EnvFactory | Sequence[EnvFactory] | Backend


def choose_settings(
    envs: tuple[Backend, int, EnvSpec | None],
    launcher: Launcher,
    *,
    num_workers: int | None,
    min_hosts: int | None,
    balance: bool,
    observation_mode: str | tuple[Space[Any], Space[Any]],
    autoreset_mode: str | AutoresetMode,
    batch_size: int | None,
    sync: SyncRule | None,
    encoding: str,
    trust_workers: bool,
    limits: Limits | None,
    network: Network | None,
    log_dir: str | Path | None,
) -> Settings:
    """The other arguments of :class:`clusterenv.ClusterEnv`, checked, with the defaults chosen."""
    backend, num_envs, spec = envs
    num_workers = choose_num_workers(with_own_threads(num_workers, backend, launcher), num_envs)
    batch_size = choose_batch_size(batch_size, num_envs)
    return Settings(
        backend=in_batches(backend, batch_size, num_envs, num_workers),
        num_envs=num_envs,
        num_workers=num_workers,
        launcher=launcher,
        min_hosts=choose_min_hosts(min_hosts, launcher),
        balance=balance,
        batch_size=batch_size,
        spec=spec,
        observation_mode=observation_mode,
        autoreset_mode=choose_autoreset_mode(autoreset_mode),
        sync_rule=choose_sync_rule(sync),
        encoding=check_encoding(encoding),
        trust_workers=trust_workers,
        limits=_group("limits", limits, Limits),
        network=_group("network", network, Network),
        log_dir=choose_log_dir(log_dir),
    )


def choose_backend(
    env: Env, num_envs: int | None, wrappers: Wrappers, kwargs: dict[str, Any]
) -> tuple[Backend, int, EnvSpec | None]:
    """The backend, the number of envs, and the spec if ``env`` is an id."""
    num_envs = None if num_envs is None else check_count("num_envs", num_envs)
    wrappers = choose_wrappers(wrappers)
    _refuse_moved(kwargs)
    if isinstance(env, str | EnvSpec):
        _refuse_misspelt(kwargs)
        spec = _spec_of(env) if isinstance(env, str) else env
        return (
            RegisteredBackend(spec, kwargs, wrappers),
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
            raise TypeError(
                "wrappers= goes with an id or callables; a backend wraps its own envs, in build()"
            )
        return env, num_envs or 1, None
    if callable(env):
        return _from_callables([env] * (num_envs or 1), wrappers)
    factories: list[Any] = list(env) if isinstance(env, Iterable) else [env]
    _refuse_what_makes_no_env(factories)
    if num_envs not in (None, len(factories)):
        raise ValueError(
            f"num_envs={num_envs}, but {len(factories)} callables were given: leave num_envs out, "
            "or pass one callable for each env"
        )
    return _from_callables(factories, wrappers)


def with_wrappers(backend: Backend, wrappers: Sequence[EnvWrapper] | EnvWrapper) -> Backend:
    """The same envs with these wrappers in place of their own."""
    if not isinstance(backend, RegisteredBackend | CallableBackend):
        raise TypeError("wrappers= goes with an id or callables; a backend wraps its own envs")
    return replace(backend, wrappers=choose_wrappers(wrappers))


def _spec_of(env: str) -> EnvSpec:
    """The spec of an id or ``module:id``, whose module is imported as by ``gymnasium.make``."""
    module, _, name = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def _from_callables(
    factories: list[EnvFactory], wrappers: tuple[EnvWrapper, ...]
) -> tuple[Backend, int, None]:
    return CallableBackend(dict(enumerate(factories)), wrappers), len(factories), None


def _refuse_what_makes_no_env(factories: list[Any]) -> None:
    if factories and all(callable(factory) for factory in factories):
        return
    is_built = any(hasattr(one, "reset") and hasattr(one, "step") for one in factories)
    advice = "; workers build the envs: pass a callable that makes one" if is_built else ""
    raise TypeError(
        "env must be a Gymnasium id, a callable, a non-empty list of callables, or a backend; "
        f"got {factories!r:.200}{advice}"
    )


def choose_wrappers(wrappers: Wrappers) -> tuple[EnvWrapper, ...]:
    """All wrappers; a single one needs no list."""
    if wrappers is None or callable(wrappers):
        return () if wrappers is None else (wrappers,)
    if isinstance(wrappers, Iterable):
        listed: tuple[Any, ...] = tuple(wrappers)
        wrong = [place for place, wrapper in enumerate(listed) if not callable(wrapper)]
        if not wrong:
            return listed
        found = f"wrappers[{wrong[0]}]={listed[wrong[0]]!r:.80}"
    else:
        found = f"wrappers={wrappers!r:.80}"
    raise TypeError(
        f"{found} cannot be called: a wrapper takes an env and returns one, such as "
        "TransformReward or functools.partial(TimeLimit, max_episode_steps=100)"
    )


def _vector_spec(spec: EnvSpec, kwargs: dict[str, Any], num_envs: int) -> EnvSpec:
    """The spec as ``gymnasium.make_vec`` would record it."""
    recorded = copy.deepcopy(spec)
    recorded.kwargs = {**recorded.kwargs, **kwargs, "num_envs": num_envs}
    return recorded


_GROUPS: dict[str, type[Limits] | type[Network]] = {"limits": Limits, "network": Network}


def _places_in_groups() -> dict[str, str]:
    """How to pass a field of a group: ``port`` → ``network=Network(port=…)``."""
    return {
        field.name: f"{group}={kind.__name__}({field.name}=…)"
        for group, kind in _GROUPS.items()
        for field in fields(kind)
    }


def _group(name: str, given: Any, kind: type[_Group]) -> _Group:
    """A group of settings as given, or with its defaults."""
    if given is None or isinstance(given, kind):
        return kind() if given is None else given
    example = fields(kind)[0].name
    raise TypeError(
        f"{name}={given!r:.80} must be a clusterenv.{kind.__name__}, such as "
        f"{kind.__name__}({example}=…)"
    )


def choose_autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """Gymnasium's mode of this name."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        names = ", ".join(repr(one.value) for one in AutoresetMode)
        raise ValueError(f"autoreset_mode={mode!r} must be one of {names}") from None


def _refuse_moved(kwargs: dict[str, Any]) -> None:
    if "min_workers" in kwargs:
        raise TypeError(
            "min_workers= is min_hosts= now, which counts machines: pass min_hosts=1 for one"
        )
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


def with_own_threads(num_workers: int | None, backend: Backend, launcher: Launcher) -> int | None:
    """One worker per host by default, if envs run in their engine's own threads."""
    if num_workers is None and isinstance(backend, ThreadedBackend):
        return max(1, launcher.num_hosts)
    return num_workers


def choose_num_workers(num_workers: int | None, num_envs: int) -> int | None:
    """The given number, but at most one per env; None if not given."""
    return None if num_workers is None else min(check_count("num_workers", num_workers), num_envs)


def choose_batch_size(batch_size: int | None, num_envs: int) -> int:
    """The given number, if valid; by default all envs."""
    if batch_size is None:
        return num_envs
    return check_part("batch_size", batch_size, num_envs, f"num_envs={num_envs}")


def in_batches(
    backend: Backend, batch_size: int, num_envs: int, num_workers: int | None
) -> Backend:
    """If batches are partial, have an engine that can fill them itself return a worker's share."""
    own: Any = backend
    if batch_size == num_envs or not hasattr(own, "in_batches_of"):
        return backend
    return own.in_batches_of(-(-batch_size // (num_workers or 1)))  # type: ignore[no-any-return]


def choose_min_hosts(min_hosts: int | None, launcher: Launcher) -> int | None:
    """The given number, if valid; None for all."""
    if min_hosts is None:
        return None
    num_hosts = max(1, launcher.num_hosts)
    what = f"the number of hosts, which is {num_hosts} with this launcher"
    return check_part("min_hosts", min_hosts, num_hosts, what)


def choose_launcher(launcher: Launcher | str, shared_memory: bool = True) -> Launcher:
    """A launcher object, given by name or as such; with host processes if no memory is shared."""
    if isinstance(launcher, str) and launcher not in _LAUNCHERS:
        raise ValueError(f"launcher={launcher!r} is unknown: pass {_EXPECTED_LAUNCHERS}")
    chosen = _LAUNCHERS[launcher]() if isinstance(launcher, str) else launcher
    chosen = _object_of("launcher", chosen)
    if not hasattr(chosen, "num_hosts"):
        raise TypeError(f"launcher={chosen!r:.80} is not a launcher: pass {_EXPECTED_LAUNCHERS}")
    check_workers() if isinstance(chosen, LocalLauncher) else check_head()
    if not shared_memory and isinstance(chosen, LocalLauncher) and chosen.num_hosts == 0:
        return chosen.with_hosts(1)
    return chosen  # type: ignore[no-any-return]


_LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "local": LocalLauncher,
    "in-process": InProcessLauncher,
}
_EXPECTED_LAUNCHERS = "'local', 'in-process', or an object such as clusterenv.SlurmLauncher(…)"


def _object_of(argument: str, given: Any) -> Any:
    """``given``; or an object of it, if it is a class that needs no arguments."""
    if not isinstance(given, type):
        return given
    parameters = inspect.signature(given).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
    if not needed:
        return given()
    raise TypeError(
        f"{argument}={given.__name__} is a class that needs {', '.join(needed)}; pass an object: "
        f"{argument}={given.__name__}({needed[0]}=…)"
    )


def choose_sync_rule(rule: Any) -> SyncRule:
    """The given rule, if it has all members of a rule; by default every version."""
    if rule is None:
        return EveryVersion()
    rule = _object_of("sync", rule)
    missing = [name for name in _RULE_MEMBERS if not hasattr(rule, name)]
    if len(missing) == len(_RULE_MEMBERS):
        raise TypeError(
            f"sync={rule!r:.80} is not a sync rule: pass an object such as "
            "clusterenv.EveryVersion(), clusterenv.EveryNth(10) or "
            "clusterenv.AdaptiveSync(threshold=0.1)"
        )
    if missing:
        raise TypeError(
            f"sync={type(rule).__name__}(…) is not a sync rule: it lacks {', '.join(missing)}; see "
            "clusterenv.SyncRule; a rule that measures nothing has rows = 0, "
            'measure = "divergence" and threshold = 0.0'
        )
    return rule  # type: ignore[no-any-return]


def choose_log_dir(log_dir: str | Path | None) -> Path | None:
    """The folder for logs, the same on all machines, wherever hosts are started there."""
    if log_dir is not None and not isinstance(log_dir, str | Path):
        raise TypeError(f"log_dir={log_dir!r} must be the path of a folder")
    return None if log_dir is None else Path(log_dir).absolute()


_RULE_MEMBERS = ("cause_to_pull", "rows", "measure", "threshold")
