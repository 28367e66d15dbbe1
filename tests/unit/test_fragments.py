"""Parts of a fragment are joined slot by slot, and what they lay in is given back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.protocol.fragments import FragmentPart, join_arrays, join_parts
from clusterenv.protocol.requests import Collect, Newest

STEPS = 3


def request(number=1):
    return Collect(number, tuple(range(10)), STEPS, Newest(1, 5))


def part(slots, finals=(), number=1, release=lambda: None):
    """Every number says which slot it belongs to."""
    columns = np.array(slots)
    arrays = {
        "observations/0": np.tile(columns[None, :, None], (STEPS + 1, 1, 2)),
        "rewards": np.tile(columns.astype(float), (STEPS, 1)),
        "outputs/log_prob": np.tile(columns.astype(np.float32), (STEPS, 1)),
        "state/": columns[:, None].repeat(4, axis=1),
        "last_values": columns.astype(np.float32),
        "finals/slots": np.array(finals, np.int64),
        "finals/0": np.array(finals, np.int64)[:, None].repeat(2, axis=1),
    }
    return FragmentPart(request(number), tuple(slots), 5, arrays, release)


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(1, 4))
def test_parts_joined_are_the_fragment_of_all_their_slots(slots, num_parts):
    slots = sorted(slots)
    size = -(-len(slots) // num_parts)
    groups = [slots[start : start + size] for start in range(0, len(slots), size)]
    joined = join_parts([part(group, finals=group[:1]) for group in groups])
    whole = part(slots, finals=[group[0] for group in groups])
    assert joined.slots == tuple(slots)
    assert joined.arrays.keys() == whole.arrays.keys()
    for name, array in whole.arrays.items():
        assert joined.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(joined.arrays[name], array)


def test_a_joined_part_keeps_its_request_and_version():
    joined = join_parts([part([1]), part([2])])
    assert joined.request == request()
    assert joined.version == 5


def test_parts_without_an_episode_that_ended_are_joined_too():
    joined = join_parts([part([1]), part([2], finals=[2]), part([3])])
    assert joined.arrays["finals/slots"].tolist() == [2]


def test_what_parts_lay_in_is_released_once_they_are_joined():
    memory, released = np.ones((STEPS, 1)), []

    def release():
        # Whoever gets the room may write to it at once.
        released.append(True)
        memory[...] = 9

    first = part([1], release=release)
    first.arrays["rewards"] = memory
    joined = join_parts([first, part([2], release=release)])
    assert len(released) == 2
    assert joined.arrays["rewards"][:, 0].tolist() == [1.0] * STEPS
    joined.release()
    assert len(released) == 2


def test_one_part_alone_becomes_the_callers_own_too():
    only, released = part([1]), []
    joined = join_parts(
        [FragmentPart(only.request, (1,), 5, only.arrays, lambda: released.append(1))]
    )
    assert released == [1]
    for name, array in joined.arrays.items():
        assert not np.shares_memory(array, only.arrays[name])


@pytest.mark.parametrize("name", ["state/", "state/h", "finals/steps", "finals/0", "last_values"])
def test_what_has_a_row_per_slot_or_episode_is_joined_by_rows(name):
    assert join_arrays(name, [np.zeros((2, 7)), np.zeros((3, 7))]).shape == (5, 7)


@pytest.mark.parametrize("name", ["observations/0", "actions/1", "rewards", "outputs/value"])
def test_everything_else_is_joined_by_columns(name):
    assert join_arrays(name, [np.zeros((7, 2)), np.zeros((7, 3))]).shape == (7, 5)


def test_a_part_of_an_earlier_request_comes_first():
    parts = [part([1], number=3), part([2], number=1), part([3], number=2)]
    assert [one.request.request for one in sorted(parts)] == [1, 2, 3]
