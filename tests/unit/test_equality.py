"""The comparison used by the contract tests notices every kind of difference."""

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance

from tests.equality import assert_same

DIFFERENT = {
    "value": (1, 2),
    "type": (1, 1.0),
    "numpy scalar": (1.0, np.float64(1.0)),
    "bool and numpy bool": (True, np.bool_(True)),
    "list and tuple": ([1], (1,)),
    "named tuple": ((1, None, None), GraphInstance(1, None, None)),
    "length": ((1,), (1, 2)),
    "missing key": ({"a": 1}, {"a": 1, "b": 2}),
    "nested value": ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}),
    "dtype": (np.zeros(2, np.float32), np.zeros(2, np.float64)),
    "shape": (np.zeros((2, 1)), np.zeros(2)),
    "element": (np.array([1, 2]), np.array([1, 3])),
    "nan": (np.array([np.nan]), np.array([0.0])),
    "object array": (np.array([None, 1], object), np.array([None, 1.0], object)),
    "scalar and 0-d array": (np.float32(1), np.array(1, np.float32)),
}


@pytest.mark.parametrize(("actual", "expected"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_difference_is_noticed(actual, expected):
    with pytest.raises(AssertionError):
        assert_same(actual, expected)


def test_equal_structures_pass():
    def build():
        return {
            "nan": [float("nan"), np.float32("nan"), np.array([np.nan, 1.0])],
            "objects": np.array([None, "x", (1, 2.0)], object),
            "graph": (GraphInstance(np.ones((2, 1)), None, None),),
        }

    assert_same(build(), dict(reversed(build().items())))


def test_the_message_names_the_place():
    with pytest.raises(AssertionError, match=r"value\['a'\]\[1\]: 2 instead of 3"):
        assert_same({"a": [1, 2]}, {"a": [1, 3]})
