"""Fragment and Rollout: what a policy did, as arrays by slot."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array, bytes_of
from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.protocol.fragment_infos import PREFIX as INFOS
from clusterenv.protocol.fragment_infos import read_columns
from clusterenv.protocol.fragments import FragmentPart, join_arrays, kinds_of
from clusterenv.step_infos import StepInfos

DISAGREEMENT = (
    "the policy's outputs differ between slots and cannot be joined: make act() return the same "
    "names, shapes and dtypes everywhere (if it does, a host has sent wrong ones)"
)


@dataclass(frozen=True)
class Finals:
    """The true last observation of each episode that ended: a row per episode, in order of steps
    and, of those that ended together, columns."""

    steps: Array
    """The step (0 … T - 1) at which it ended …"""
    columns: Array
    """… and its column in the arrays [T, n, …]."""
    observations: Any
    """Its last observation, in the structure of the observation space."""
    values: Array | None
    """The policy's value of that observation, where the policy has a value."""


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended: a row per episode, those of a fragment as in ``finals``."""

    slots: Array
    """The slot in which it was played."""
    returns: Array
    """The sum of its rewards, including those before the fragment began."""
    lengths: Array
    """The number of its steps, likewise."""


@dataclass(frozen=True, repr=False)
class Fragment:
    """T consecutive steps of some slots. The arrays are the caller's own.

    Every row is a real transition. An episode that ends is reset within the step, so
    ``observations[t + 1]`` is then the first observation of the next episode, and the true last
    one of the ended episode is in ``finals``.
    """

    slots: Array
    """[n]: the slots that the columns belong to."""
    versions: Array
    """[T, n]: the version of the policy that acted."""
    observations: Any
    """[T+1, n, …], in the structure of the observation space."""
    actions: Any
    """[T, n, …], in the structure of the action space."""
    rewards: Array
    """[T, n], float64."""
    terminated: Array
    """[T, n]: whether the episode reached an end of its own, after which no rewards follow."""
    truncated: Array
    """[T, n]: whether the episode was cut off, for instance by a time limit."""
    outputs: dict[str, Array]
    """The policy's named outputs, [T, n] each: ``log_prob``, ``value`` …"""
    distribution: dict[str, Array]
    """[T, n, …]: the parameters of what each action was drawn from, such as ``logits``."""
    last_values: Array | None
    """[n]: the value of ``observations[T]``, where the policy has a value."""
    state: Any
    """[n, …]: the recurrent state before the first step, or None."""
    finals: Finals
    """The true last observations of ended episodes, as :class:`~clusterenv.rollout.Finals`."""
    episodes: Episodes
    """The returns and lengths of ended episodes, as :class:`Episodes`."""
    infos: Mapping[str, Any] = field(default_factory=dict)
    """What the envs reported, as :class:`~clusterenv.step_infos.StepInfos`: ``infos["speed"]`` is
    an array [T, n, …], and ``infos["_speed"]`` the mask of the rows that have it. Where an episode
    ended, the env's last info is in ``infos["final_info"]``, such as
    ``infos["final_info"]["episode"]["r"]``, and the row itself has the info of the next episode's
    reset, as in Gymnasium's same-step autoreset. Empty dicts are left out, and so are the infos of
    ``reset`` itself and, for a ready-made VectorEnv that resets at the next step, those of its
    resets."""

    @property
    def num_steps(self) -> int:
        """T, the number of steps of each slot."""
        return len(self.rewards)

    def __repr__(self) -> str:
        """Shapes and dtypes on one screen."""
        versions = sorted({int(self.versions.min()), int(self.versions.max())})
        lines = [
            f"{type(self).__name__} of {self.num_steps} steps of {len(self.slots)} slots, "
            f"version {' to '.join(map(str, versions))}, {len(self.episodes.slots)} episodes ended"
        ]
        shown = ("observations", "actions", "rewards", "terminated", "truncated", "outputs")
        names = (*shown, "distribution", "last_values", "state", "infos")
        values = {name: getattr(self, name) for name in names}
        lines += [f"  {n}: {_outline(v)}" for n, v in values.items() if v is not None and len(v)]
        return "\n".join(lines)

    @cached_property
    def next_observations(self) -> Any:
        """[T, n, …]: what each action led to; where an episode ended, its true last observation."""

        def shift(array: Array, finals: Array) -> Any:
            shifted = _copy_of(array[1:])
            shifted[self.finals.steps, self.finals.columns] = finals
            return shifted

        return map_structure(shift, self.observations, self.finals.observations)

    @cached_property
    def next_values(self) -> Array:
        """[T, n]: the value of ``next_observations``; 0 where the episode terminated."""
        if "value" not in self.outputs or self.last_values is None or self.finals.values is None:
            raise ValueError(
                "this policy has no value function on the workers: compute values here, by "
                "clusterenv.with_values(rollout, value), or give the policy a `value`"
            )
        shifted: Array = _copy_of(self.outputs["value"])
        shifted[:-1], shifted[-1] = self.outputs["value"][1:], self.last_values
        shifted[self.finals.steps, self.finals.columns] = self.finals.values
        shifted[self.terminated] = 0.0
        return shifted

    def flatten(self, tree: Any) -> Any:
        """Arrays [T, n, …] (or a structure of them) as [T·n, …], without a copy."""
        return map_structure(lambda array: array.reshape(-1, *array.shape[2:]), tree)

    def minibatches(self, size: int, rng: np.random.Generator | int) -> Iterator[Array]:
        """Indices into flattened arrays: each row once, in random order, ``size`` at a time.

        Args:
            size: The rows of each batch; the last may have fewer.
            rng: A generator, which goes on, or a seed, which gives the same order each time.
        """
        order = np.random.default_rng(rng).permutation(len(self.rewards) * len(self.slots))
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def torch(self, device: Any = "cpu") -> Self:
        """The same with PyTorch tensors in place of arrays, in the same structures.

        On the CPU they share the arrays' memory. To a GPU they are copied once, from pinned memory,
        and the call does not wait for the copy. ``infos`` stay arrays, and so does anything that
        PyTorch has no dtype for. Call what takes arrays, such as :func:`clusterenv.gae`, first.
        """
        from clusterenv.policies.torch import to_device

        tensors: Self = _map_fields(self, partial(to_device, device=device))
        return tensors

    def refuse_tensors(self, name: str) -> None:
        """TypeError if this came from :meth:`torch`; ``name`` is who needs arrays."""
        if not isinstance(self.rewards, np.ndarray):
            raise TypeError(f"{name} takes a rollout of arrays: call it before rollout.torch()")


@dataclass(frozen=True, repr=False)
class Rollout(Fragment):
    """T steps of all slots: column *i* is slot *i* (with ``wait_num``, slot ``slots[i]``)."""


AnyFragment = TypeVar("AnyFragment", bound=Fragment)


def check_values(values: Array, rewards: Array) -> None:
    """ValueError unless there is one value per reward."""
    # Otherwise NumPy might broadcast one to the other, and the result would look right.
    if np.shape(values) != np.shape(rewards):
        raise ValueError(
            f"values have shape {np.shape(values)}, rewards {np.shape(rewards)}: split a rollout "
            "of several agents with by_agent first"
        )


def assemble(
    kind: type[AnyFragment],
    parts: Sequence[FragmentPart],
    observation_space: Space[Any],
    action_space: Space[Any],
    trusted: bool = False,
) -> AnyFragment:
    """Join parts whose slots ascend into one Fragment or Rollout (``kind``), and release them.

    ``trusted`` says whether infos may be unpickled.
    """
    try:
        return _assemble(kind, parts, observation_space, action_space, trusted)
    except (LookupError, ValueError, TypeError) as error:
        first, *others = (kinds_of(part.arrays) for part in parts)
        if any(kinds != first for kinds in others):
            raise ProtocolError(DISAGREEMENT) from error
        raise
    finally:
        # Even after Ctrl-C in between: otherwise the worker would never get this room back.
        for part in parts:
            part.release()


def _assemble(
    kind: type[AnyFragment],
    parts: Sequence[FragmentPart],
    observation_space: Space[Any],
    action_space: Space[Any],
    trusted: bool,
) -> AnyFragment:
    arrays = [part.arrays for part in parts]
    slots = np.concatenate([part.slots for part in parts])

    def join(name: str) -> Array:
        return join_arrays(name, [named[name] for named in arrays])

    def join_all(prefix: str) -> dict[str, Array]:
        names = [name for name in arrays[0] if name.startswith(prefix)]
        return {name.removeprefix(prefix): join(name) for name in names}

    observation_leaves = range(len(leaves_of(observation_space)))
    action_leaves = range(len(leaves_of(action_space)))
    has_values = "last_values" in arrays[0]
    # In the order in which they ended, whichever worker played them.
    order = np.lexsort((join("finals/slots"), join("finals/steps")))
    ends = {name: array[order] for name, array in join_all("finals/").items()}
    state = join_all("state/")
    rewards = join("rewards")
    versions = np.repeat([part.version for part in parts], [len(part.slots) for part in parts])
    return kind(
        slots=slots,
        versions=np.tile(versions, (len(rewards), 1)),
        observations=join_leaves(
            observation_space, [join(f"observations/{leaf}") for leaf in observation_leaves]
        ),
        actions=join_leaves(action_space, [join(f"actions/{leaf}") for leaf in action_leaves]),
        rewards=rewards,
        terminated=join("terminated"),
        truncated=join("truncated"),
        outputs=join_all("outputs/"),
        distribution=join_all("distribution/"),
        last_values=join("last_values") if has_values else None,
        state=state.get("", state or None),
        finals=Finals(
            ends["steps"],
            np.searchsorted(slots, ends["slots"]),
            join_leaves(observation_space, [ends[f"{leaf}"] for leaf in observation_leaves]),
            ends["values"] if has_values else None,
        ),
        episodes=Episodes(ends["slots"], ends["returns"], ends["lengths"]),
        infos=_infos_of(parts, len(rewards), slots, trusted),
    )


def _infos_of(
    parts: Sequence[FragmentPart], num_steps: int, slots: Array, trusted: bool
) -> StepInfos:
    columns = [
        column
        for part in parts
        for name, array in part.arrays.items()
        if name.startswith(INFOS)
        for column in read_columns(bytes_of(array), num_steps, part.slots, allow_pickle=trusted)
    ]
    for column in columns:
        if column.unread:
            warnings.warn(
                f"info {'.'.join(column.path)!r} cannot be unpickled at the head, and is left out "
                f"({column.unread}); pass infos=False if you need no infos",
                stacklevel=2,
            )
    return StepInfos(num_steps, slots, [column for column in columns if len(column.values)])


def _outline(tree: Any) -> str:
    """The dtypes and shapes of a structure of arrays."""
    if isinstance(tree, StepInfos):
        return tree.outline()
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{key}: {_outline(value)}' for key, value in tree.items())}}}"
    if isinstance(tree, tuple):
        return f"({', '.join(map(_outline, tree))})"
    return f"{tree.dtype} {tree.shape}"


def episodes_by_slot(results: Sequence[Sequence[tuple[float, int]]]) -> Episodes:
    """The episodes that each slot played, slot by slot."""
    rows = [(slot, *episode) for slot, played in enumerate(results) for episode in played]
    slots, returns, lengths = zip(*rows, strict=True)
    return Episodes(np.array(slots), np.array(returns), np.array(lengths))


def _copy_of(array: Any) -> Any:
    """A copy of an array, or of a tensor that stands in its place."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def _map_fields(record: Any, function: Any) -> Any:
    """``record`` with ``function`` applied to each array in its fields; infos stay as they are."""
    if is_dataclass(record) and not isinstance(record, type):
        changes = {one.name: getattr(record, one.name) for one in fields(record)}
        return replace(record, **{n: _map_fields(v, function) for n, v in changes.items()})
    if record is None or isinstance(record, StepInfos):
        return record
    return map_structure(function, record)


def map_structure(function: Any, tree: Any, *others: Any) -> Any:
    """Apply ``function`` to each array in ``tree`` (with those in the same place of ``others``)."""
    if isinstance(tree, Mapping):
        return {key: map_structure(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_structure(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)
