"""A deep comparison that forgives nothing but the order of dictionary keys."""

import numpy as np


def assert_same(actual, expected, path="value"):
    """Fail, naming the place, unless both have the same types, dtypes, shapes and values."""
    assert type(actual) is type(expected), (
        f"{path}: {type(actual).__name__} instead of {type(expected).__name__}: "
        f"{actual!r} instead of {expected!r}"
    )
    match expected:
        case np.ndarray():
            _assert_same_array(actual, expected, path)
        case dict():
            assert set(actual) == set(expected), f"{path}: keys {set(actual) ^ set(expected)}"
            for key in expected:
                assert_same(actual[key], expected[key], f"{path}[{key!r}]")
        case list() | tuple():
            assert len(actual) == len(expected), f"{path}: {actual!r} instead of {expected!r}"
            for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
                assert_same(left, right, f"{path}[{index}]")
        case _:
            assert actual == expected or _both_nan(actual, expected), (
                f"{path}: {actual!r} instead of {expected!r}"
            )


def _assert_same_array(actual, expected, path):
    assert actual.dtype == expected.dtype, f"{path}: {actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{path}: {actual.shape} instead of {expected.shape}"
    if expected.dtype == object:
        for index in np.ndindex(expected.shape):
            assert_same(actual[index], expected[index], f"{path}{list(index)}")
    else:
        may_be_nan = expected.dtype.kind in "fc"
        assert np.array_equal(actual, expected, equal_nan=may_be_nan), (
            f"{path}: {actual!r} instead of {expected!r}"
        )


def _both_nan(actual, expected):
    return isinstance(expected, (float, complex, np.inexact)) and bool(
        np.isnan(actual) and np.isnan(expected)
    )
