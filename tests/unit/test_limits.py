"""Limits that cannot be kept are refused when they are made."""

import dataclasses
import math

import pytest

from clusterenv import Limits

TIMEOUTS = [field.name for field in dataclasses.fields(Limits) if field.name.endswith("_s")]


@pytest.mark.parametrize("name", TIMEOUTS)
@pytest.mark.parametrize("value", [0, -1.0, math.nan])
def test_a_time_out_must_be_above_zero(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} must be above 0"):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["max_restarts_per_minute", "max_restarts"])
def test_a_restart_budget_may_be_zero_but_not_less(name):
    assert getattr(Limits(**{name: 0}), name) == 0
    with pytest.raises(ValueError, match=f"{name}=-1 must be at least 0"):
        Limits(**{name: -1})


def test_limits_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().lease_s = 1.0


def test_there_are_six_times():
    assert len(TIMEOUTS) == 6
