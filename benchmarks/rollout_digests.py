"""One side of ``same_rollouts.py``: a SHA-256 of every array that rollouts and steps give.

Only the package's public API is used, so that this fits both sides.
"""

import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from checkouts import serve
from digest_worlds import WORLDS, set_weights
from either_side import assert_package_is_of_this_side, public

import clusterenv

NUM_ENVS, SEED = 12, 7
ROLLOUT_STEPS = (40, 9, 60)
STEPS = 60
Digest = tuple[str, str, str]


@dataclass(frozen=True)
class Layout:
    """Who steps the envs."""

    workers: int
    shared_memory: bool = True
    hosts: int | None = None
    reference: str = ""
    """The layout before hosts that has as many workers, if it is not this one itself."""


LAYOUTS = {
    "1 worker": Layout(1),
    "2 workers": Layout(2),
    "3 workers": Layout(3),
    "4 workers": Layout(4),
    "2 workers, shared_memory=False": Layout(2, shared_memory=False, reference="2 workers"),
    "4 workers on 2 hosts": Layout(4, hosts=2, reference="4 workers"),
}


def open_envs(world: str, layout: Layout) -> Any:
    """The one place where a ``ClusterEnv`` is made, should a side need other arguments."""
    options: dict[str, Any] = {"sync": clusterenv.EveryVersion()}
    if not layout.shared_memory:
        options["shared_memory"] = False
    if layout.hosts is not None:
        options["launcher"] = public("LocalLauncher", "launchers.local")(hosts=layout.hosts)
    return clusterenv.ClusterEnv(WORLDS[world].make, NUM_ENVS, layout.workers, **options)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The digests of one world in one layout, or why this side has none."""
    assert_package_is_of_this_side()
    world, layout = question["world"], LAYOUTS[question["layout"]]
    launcher = inspect.signature(public("LocalLauncher", "launchers.local"))
    if layout.hosts is not None and "hosts" not in launcher.parameters:
        return {"skipped": "LocalLauncher has no argument hosts"}
    with closing(open_envs(world, layout)) as envs:
        return {"digests": [*_of_rollouts(envs, world), *_of_steps(envs)]}


def _of_rollouts(envs: Any, world: str) -> Iterator[Digest]:
    for name, make_policy in WORLDS[world].policies.items():
        if name == "TorchPolicy" and importlib.util.find_spec("torch") is None:
            continue
        policy = make_policy(envs.single_observation_space)
        envs.reset(seed=SEED)
        for number, num_steps in enumerate(ROLLOUT_STEPS):
            set_weights(policy, seed=number)
            rollout = envs.rollout(policy, num_steps)
            for array_name, array in _arrays_of(rollout):
                yield f"{name}, rollout {number + 1}", array_name, _digest([array])


NAMES = ("slots", "versions", "observations", "actions", "rewards", "terminated", "truncated")
MORE_NAMES = ("outputs", "distribution", "last_values", "state")
# The rows of these came worker by worker before they were sorted.
ROWS = {
    "finals": ("steps", "columns", "observations", "values"),
    "episodes": ("slots", "returns", "lengths"),
}


def _arrays_of(rollout: Any) -> Iterator[tuple[str, np.ndarray]]:
    for name in (*NAMES, *MORE_NAMES):
        yield from _leaves(name, getattr(rollout, name))
    order = np.lexsort((rollout.finals.columns, rollout.finals.steps))
    for group, names in ROWS.items():
        for name in names:
            for leaf, array in _leaves(f"{group}.{name}", getattr(getattr(rollout, group), name)):
                yield leaf, array[order]


def _of_steps(envs: Any) -> Iterator[Digest]:
    """The same actions, drawn beforehand, in steps of all envs."""
    envs.action_space.seed(SEED)
    observations, infos = envs.reset(seed=SEED)
    by_name: dict[str, list[np.ndarray]] = {}
    for results in [{"observations": observations, "infos": infos}, *_steps(envs)]:
        for name, array in _leaves("", results):
            by_name.setdefault(name, []).append(array)
    for name, arrays in by_name.items():
        yield "step", name, _digest(arrays)


def _steps(envs: Any) -> Iterator[dict[str, Any]]:
    names = ("observations", "rewards", "terminated", "truncated", "infos")
    for _ in range(STEPS):
        yield dict(zip(names, envs.step(envs.action_space.sample()), strict=True))


def _leaves(name: str, tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from _leaves(f"{name}.{key}".removeprefix("."), tree[key])
    elif tree is not None:
        yield name, np.asarray(tree)


def _digest(arrays: list[np.ndarray]) -> str:
    """Of type, shape and every bit of each; with the type and shape of the first in words."""
    found = sha256()
    for array in arrays:
        if array.dtype.hasobject:
            raise TypeError(f"there are no bits to compare in an array of {array.dtype}")
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return f"{arrays[0].dtype}{list(arrays[0].shape)} {found.hexdigest()}"


if __name__ == "__main__":
    serve(answer)
