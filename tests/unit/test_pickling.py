"""What cannot travel to the workers is named, with the way that leads to it."""

import pickle
import threading

import pytest

from clusterenv.errors import CannotPickleError
from clusterenv.wire.pickling import pickle_for_workers

LOCK = threading.Lock()


class Holder:
    """Anything with attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def uses_a_global():
    return LOCK


def closes_over(value):
    def make_env():
        return value

    return make_env


CULPRITS = {
    "a lock": (LOCK, "an object of type _thread.lock (an object of type _thread.lock)"),
    "in a list": ([1, LOCK], "[1] (an object of type _thread.lock)"),
    "in a dict": ({"a": {"b": LOCK}}, "['a']['b'] (an object of type _thread.lock)"),
    "in an attribute": (Holder(x=Holder(y=LOCK)), ".x.y (an object of type _thread.lock)"),
    "in a closure": (closes_over(LOCK), "variable 'value' of closes_over.<locals>.make_env"),
    "deep in a closure": (
        [closes_over({"env": [LOCK]})],
        "[0] variable 'value' of closes_over.<locals>.make_env['env'][0]",
    ),
}


@pytest.mark.parametrize(("value", "culprit"), CULPRITS.values(), ids=CULPRITS)
def test_the_part_that_cannot_travel_is_named(value, culprit):
    with pytest.raises(CannotPickleError) as caught:
        pickle_for_workers(value)
    assert f"{culprit}" in str(caught.value)


def test_a_global_that_cannot_travel_is_named():
    # A function of a module that the worker cannot import travels by value, globals included.
    here = {"LOCK": LOCK}
    exec("def make_env():\n    return LOCK", here)
    with pytest.raises(CannotPickleError, match="global 'LOCK' of make_env"):
        pickle_for_workers(here["make_env"])


def test_the_error_says_whose_part_it_is_and_what_to_do():
    with pytest.raises(CannotPickleError) as caught:
        pickle_for_workers(Holder(lock=LOCK))
    text = str(caught.value)
    assert text.startswith(f"an object of type {__name__}.Holder: .lock")
    assert "cannot pickle '_thread.lock' object" in text
    assert "inside the env or the function that makes it" in text


def test_the_original_error_is_the_cause():
    with pytest.raises(CannotPickleError) as caught:
        pickle_for_workers(LOCK)
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_holds_itself_is_searched_to_an_end():
    knot = Holder(lock=LOCK)
    knot.self = knot
    with pytest.raises(CannotPickleError, match=r"\.lock"):
        pickle_for_workers(knot)


def test_a_closure_over_a_variable_without_a_value_is_still_explained():
    def outer(value, is_known=False):
        if is_known:
            later = 1

        def make_env():
            return later, value

        return make_env

    with pytest.raises(CannotPickleError, match="variable 'value'"):
        pickle_for_workers(outer(LOCK))


@pytest.mark.parametrize(
    "value",
    [closes_over(5), lambda: 5, [1, {"a": (2, None)}], uses_a_global],
    ids=["closure", "lambda", "data", "function with a global"],
)
def test_what_can_travel_comes_back(value):
    back = pickle.loads(pickle_for_workers(value))
    assert back() in (5, LOCK) if callable(value) else back == value
