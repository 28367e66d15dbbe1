"""Workers agree on spaces, or the error says which slot does not fit."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from clusterenv.agreement import agree_on_spaces

SMALL, BIG = Box(0.0, 1.0, (2,)), Box(0.0, 9.0, (2,))
OTHER_SHAPE, OTHER_DTYPE = Box(0.0, 1.0, (3,)), Box(0.0, 1.0, (2,), np.float64)


def described(observations, actions=(Discrete(2),), metadata=None, render_mode=None):
    """What a worker with these spaces says."""
    return {
        "observation_spaces": list(observations),
        "action_spaces": list(actions),
        "metadata": metadata or {},
        "render_mode": render_mode,
        "steps_together": False,
    }


def agree(*workers, counts, mode="same"):
    return agree_on_spaces(workers, counts, mode)


def test_equal_spaces_are_batched_for_all_slots():
    agreed = agree(described([SMALL]), described([SMALL]), counts=[2, 1])
    assert agreed.single_observation_space == SMALL
    assert agreed.observation_space == batch_space(SMALL, 3)
    assert agreed.single_action_space == Discrete(2)
    assert agreed.action_space == batch_space(Discrete(2), 3)


def test_metadata_and_render_mode_are_those_of_the_first_slot():
    first = described([SMALL], metadata={"fps": 30}, render_mode="human")
    second = described([SMALL], metadata={"fps": 60}, render_mode=None)
    agreed = agree(first, second, counts=[1, 1])
    assert (agreed.metadata, agreed.render_mode) == ({"fps": 30}, "human")


def test_differing_spaces_are_batched_in_slot_order():
    workers = described([SMALL, BIG]), described([BIG])
    agreed = agree(*workers, counts=[2, 2], mode="different")
    assert agreed.observation_space == batch_differing_spaces([SMALL, BIG, BIG, BIG])
    assert agreed.single_observation_space == SMALL


def test_a_pair_of_spaces_is_the_batched_and_the_single_one():
    mode = (batch_space(BIG, 2), BIG)
    agreed = agree(described([SMALL]), counts=[2], mode=mode)
    assert agreed.observation_space is mode[0]
    assert agreed.single_observation_space is mode[1]


# Disagreements.


@pytest.mark.parametrize(
    ("workers", "counts", "slot"),
    [
        ([described([SMALL]), described([BIG])], [2, 1], 2),
        ([described([SMALL, SMALL, BIG])], [3], 2),
        ([described([SMALL]), described([SMALL, OTHER_SHAPE])], [2, 2], 3),
    ],
    ids=["another worker", "the same worker", "the second of another worker"],
)
def test_observation_spaces_that_are_not_the_same_name_the_slot(workers, counts, slot):
    with pytest.raises(RuntimeError, match=rf"observation_mode='same'.*slot {slot} has Box"):
        agree(*workers, counts=counts)


def test_the_error_says_that_different_spaces_are_possible():
    with pytest.raises(RuntimeError, match="use `observation_mode='different'` instead"):
        agree(described([SMALL, BIG]), counts=[2])


@pytest.mark.parametrize("misfit", [OTHER_SHAPE, OTHER_DTYPE], ids=["shape", "dtype"])
@pytest.mark.parametrize("mode", [(batch_space(SMALL, 2), SMALL)], ids=["a pair"])
def test_spaces_that_differ_too_much_name_the_slot(misfit, mode):
    text = "do not share a common shape and dtype.*slot 1 has Box"
    with pytest.raises(RuntimeError, match=text):
        agree(described([SMALL, misfit]), counts=[2], mode=mode)


def test_different_spaces_of_different_shapes_are_refused_as_by_gymnasium():
    with pytest.raises(Exception) as expected:
        batch_differing_spaces([SMALL, OTHER_SHAPE])
    with pytest.raises(expected.type):
        agree(described([SMALL, OTHER_SHAPE]), counts=[2], mode="different")


def test_action_spaces_that_differ_name_the_slot():
    workers = described([SMALL]), described([SMALL], [Discrete(3)])
    text = r"action space different from `Discrete\(2\)`.*Slot 2 has Discrete\(3\)"
    with pytest.raises(RuntimeError, match=text):
        agree(*workers, counts=[2, 1])


def test_spaces_of_another_kind_are_refused():
    with pytest.raises(RuntimeError, match="slot 1 has Text"):
        agree(described([SMALL, Text(3)]), counts=[2])


@pytest.mark.parametrize("mode", ["equal", None, (SMALL,), (SMALL, SMALL, SMALL)])
def test_an_unknown_mode_is_refused_with_the_known_ones(mode):
    with pytest.raises(ValueError, match="expected: 'same' or 'different' or tuple"):
        agree(described([SMALL]), counts=[1], mode=mode)


def test_a_pair_that_is_not_of_spaces_is_refused():
    with pytest.raises(TypeError, match="to be Spaces, got <class 'str'> and <class 'int'>"):
        agree(described([SMALL]), counts=[1], mode=("a", 1))
