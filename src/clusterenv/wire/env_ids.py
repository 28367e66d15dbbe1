"""Sends env ids that the user's code registered to the workers."""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator

import cloudpickle
from gymnasium.envs.registration import EnvSpec, registry


def pickle_registrations(mentioned: Collection[str], is_users: Callable[[str], bool]) -> bytes:
    """The ids that an env may ask for: those ``mentioned``, and those of the user's modules.

    ``is_users`` says whether the module of a name is the user's.
    """
    specs: dict[str, bytes] = {}
    in_script: dict[str, bytes] = {}
    for spec in list(registry.values()):
        modules = {module for module, _ in _entry_points(spec)}
        is_known_there = all(module.partition(".")[0] == "gymnasium" for module in modules)
        if is_known_there or not (spec.id in mentioned or any(map(is_users, modules))):
            continue
        with contextlib.suppress(Exception):  # one that cannot travel may not be needed
            in_script |= _objects_in_script(spec)
            specs[spec.id] = cloudpickle.dumps(spec)
    return pickle.dumps((specs, in_script)) if specs else b""


def _entry_points(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    """Module and name of everything that the spec needs."""
    wrappers = (wrapper.entry_point for wrapper in spec.additional_wrappers)
    for entry_point in (spec.entry_point, spec.vector_entry_point, *wrappers):
        if isinstance(entry_point, str):
            module, _, name = entry_point.partition(":")
            yield module, name
        elif entry_point is not None:
            yield getattr(entry_point, "__module__", None) or "", ""


def _objects_in_script(spec: EnvSpec) -> dict[str, bytes]:
    """The objects that entry points such as ``"__main__:MyEnv"`` name."""
    script = sys.modules["__main__"]
    names = {name for module, name in _entry_points(spec) if module == "__main__" and name}
    return {name: cloudpickle.dumps(getattr(script, name)) for name in names}


def register_from(data: bytes) -> None:
    """Register the ids that are not registered here yet."""
    specs, in_script = pickle.loads(data)
    script = sys.modules["__main__"]
    for name, pickled in in_script.items():
        if not hasattr(script, name):
            setattr(script, name, pickle.loads(pickled))
    for env_id, pickled in specs.items():
        if env_id in registry:
            continue
        # The env's own module may register it again when it is imported.
        already = f".*Overriding environment {re.escape(env_id)} already in registry"
        warnings.filterwarnings("ignore", already)
        try:
            registry[env_id] = pickle.loads(pickled)
        except Exception as error:  # another env may be the one that is wanted
            warnings.warn(f"cannot register {env_id!r} on this worker: {error!r}", stacklevel=2)
