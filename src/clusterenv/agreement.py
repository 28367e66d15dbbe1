"""Turns what each worker says about its envs into the spaces of the whole vector env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from clusterenv.plain.spaces import are_equal, batch_large

_LONGEST_NAME = 2_000

ObservationMode = str | tuple[Space[Any], Space[Any]]


@dataclass(frozen=True)
class AgreedSpaces:
    """What all workers agree on."""

    single_observation_space: Space[Any]
    observation_space: Space[Any]
    single_action_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    steps_together: bool
    """Whether a worker must step all of its slots at once (a ready-made VectorEnv)."""


def agree_on_spaces(
    descriptions: Sequence[dict[str, Any]], counts: Sequence[int], mode: ObservationMode
) -> AgreedSpaces:
    """Check that all envs fit together; raises what Gymnasium raises if they do not."""
    observations = _by_slot(descriptions, counts, "observation_spaces")
    actions = _by_slot(descriptions, counts, "action_spaces")
    single = _single_observation_space(observations, mode)
    differing = batch_differing_spaces(observations) if mode == "different" else None
    # Before equal spaces are batched: one with a huge description must not be allocated.
    _check_observations(observations, single, mode)
    _check_actions(actions)
    batched = mode[0] if isinstance(mode, tuple) else differing
    return AgreedSpaces(
        single_observation_space=single,
        observation_space=_batched(single, len(observations)) if batched is None else batched,
        single_action_space=actions[0],
        action_space=_batched(actions[0], len(actions)),
        metadata=descriptions[0]["metadata"],
        render_mode=descriptions[0]["render_mode"],
        steps_together=descriptions[0]["steps_together"],
    )


def _by_slot(
    descriptions: Sequence[dict[str, Any]], counts: Sequence[int], key: str
) -> list[Space[Any]]:
    spaces: list[Space[Any]] = []
    for description, count in zip(descriptions, counts, strict=True):
        own: list[Space[Any]] = description[key]
        spaces += own if len(own) == count else own * count
    return spaces


def _single_observation_space(spaces: list[Space[Any]], mode: ObservationMode) -> Space[Any]:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                "Expected both elements of observation_mode to be Spaces, "
                f"got {type(mode[0])} and {type(mode[1])}"
            )
        return mode[1]
    if mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and "
            f"batch observation space, actual got {mode}"
        )
    return spaces[0]


def _batched(space: Space[Any], count: int) -> Space[Any]:
    return batch_large(space, count) or batch_space(space, count)


def _shown(space: Space[Any]) -> str:
    """A space for messages, cut short, since a peer decides how long its name is."""
    return f"{space!r:.{_LONGEST_NAME}}"


def _check_observations(
    spaces: list[Space[Any]], single: Space[Any], mode: ObservationMode
) -> None:
    for slot, space in enumerate(spaces):
        if space is single:
            continue
        if mode == "same":
            if not are_equal(space, single):
                raise RuntimeError(
                    "ClusterEnv(..., observation_mode='same') however some of the "
                    "sub-environments observation spaces are not equivalent. If this is "
                    "intentional, use `observation_mode='different'` instead. "
                    f"single_observation_space={_shown(single)}, slot {slot} has {_shown(space)}"
                )
        elif not is_space_dtype_shape_equiv(space, single):
            raise RuntimeError(
                "ClusterEnv(..., observation_mode='different' or custom space) however the "
                "sub-environment's observation spaces do not share a common shape and dtype. "
                f"single_observation_space={_shown(single)}, slot {slot} has {_shown(space)}"
            )


def _check_actions(spaces: list[Space[Any]]) -> None:
    for slot, space in enumerate(spaces):
        if space is not spaces[0] and not are_equal(space, spaces[0]):
            raise RuntimeError(
                f"Some environments have an action space different from `{_shown(spaces[0])}`. "
                "In order to batch actions, the action spaces from all environments must be "
                f"equal. Slot {slot} has {_shown(space)}"
            )
