"""From what each worker says about its envs to the spaces of the whole vector env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from clusterenv.plain.spaces import space_from_plain

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
    """Whether a worker can only step all of its slots at once (a ready VectorEnv)."""


def agree_on_spaces(
    descriptions: Sequence[dict[str, Any]], counts: Sequence[int], mode: ObservationMode
) -> AgreedSpaces:
    """Check that all envs fit together; raise what Gymnasium raises if they do not."""
    observations = _by_slot(descriptions, counts, "observation_spaces")
    actions = _by_slot(descriptions, counts, "action_spaces")
    batched, single = _observation_spaces(observations, mode)
    _check_observations(observations, single, mode)
    _check_actions(actions)
    return AgreedSpaces(
        single_observation_space=single,
        observation_space=batched,
        single_action_space=actions[0],
        action_space=batch_space(actions[0], len(actions)),
        metadata=descriptions[0]["metadata"],
        render_mode=descriptions[0]["render_mode"],
        steps_together=descriptions[0]["steps_together"],
    )


def _by_slot(
    descriptions: Sequence[dict[str, Any]], counts: Sequence[int], key: str
) -> list[Space[Any]]:
    spaces: list[Space[Any]] = []
    for description, count in zip(descriptions, counts, strict=True):
        own = [space_from_plain(plain) for plain in description[key]]
        spaces += own if len(own) == count else own * count
    return spaces


def _observation_spaces(
    spaces: list[Space[Any]], mode: ObservationMode
) -> tuple[Space[Any], Space[Any]]:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                "Expected both elements of observation_mode to be Spaces, "
                f"got {type(mode[0])} and {type(mode[1])}"
            )
        return mode
    if mode == "same":
        return batch_space(spaces[0], len(spaces)), spaces[0]
    if mode == "different":
        return batch_differing_spaces(spaces), spaces[0]
    raise ValueError(
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch "
        f"observation space, actual got {mode}"
    )


def _check_observations(
    spaces: list[Space[Any]], single: Space[Any], mode: ObservationMode
) -> None:
    for slot, space in enumerate(spaces):
        if mode == "same":
            if space != single:
                raise RuntimeError(
                    "ClusterEnv(..., observation_mode='same') however some of the "
                    "sub-environments observation spaces are not equivalent. If this is "
                    "intentional, use `observation_mode='different'` instead. "
                    f"single_observation_space={single}, slot {slot} has {space}"
                )
        elif not is_space_dtype_shape_equiv(space, single):
            raise RuntimeError(
                "ClusterEnv(..., observation_mode='different' or custom space) however the "
                "sub-environment's observation spaces do not share a common shape and dtype. "
                f"single_observation_space={single}, slot {slot} has {space}"
            )


def _check_actions(spaces: list[Space[Any]]) -> None:
    for slot, space in enumerate(spaces):
        if space != spaces[0]:
            raise RuntimeError(
                f"Some environments have an action space different from `{spaces[0]}`. "
                "In order to batch actions, the action spaces from all environments must be "
                f"equal. Slot {slot} has {space}"
            )
