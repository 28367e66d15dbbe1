"""Weights that come late, or a second time, do not take a copy back."""

import pickle
import zlib
from collections import deque

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv import EveryVersion
from clusterenv.policies.copy import Snapshot, encode_layout
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.wire.messages import TakePolicy, Weights, WeightsNearby
from clusterenv.worker.acting import Acting, Workplace


def logits(weights, observations):
    raise NotImplementedError


@pytest.fixture
def acting():
    space = spaces.Discrete(2)
    place = Workplace(
        None, deque(), (0,), None, space, space, EveryVersion(), lambda: None, lambda: None
    )
    acting = Acting(place)
    policy = NumpyPolicy(logits, {"w": np.zeros(3, np.float32)})
    layout = encode_layout(Snapshot(policy.weights()).layout)
    acting.hear(TakePolicy(1, pickle.dumps(policy), layout), [])
    return acting


def weights(version, encoding="raw", base=0, policy_id=1):
    vector = np.full(3, version, np.float32).tobytes()
    return Weights(policy_id, version, zlib.crc32(vector), encoding, base), [vector]


def held(acting):
    return acting._copy.version, acting._copy.policy.weights()["w"].tolist()


def test_an_older_version_is_not_taken(acting):
    acting.hear(*weights(5))
    acting.hear(*weights(4))
    assert held(acting) == (5, [5.0] * 3)


def test_a_second_answer_that_starts_from_what_was_held_before_is_no_error(acting):
    acting.hear(*weights(5))
    acting.hear(*weights(5, "delta", base=3))
    assert held(acting) == (5, [5.0] * 3)


def test_a_neighbours_late_weights_are_not_taken(acting):
    acting.hear(*weights(5))
    acting.hear(WeightsNearby(1, 4, 0, 1, 1), [])
    assert held(acting) == (5, [5.0] * 3)
    assert not acting._neighbour_failed


def test_weights_of_another_policy_are_not_taken(acting):
    acting.hear(*weights(7, policy_id=2))
    assert held(acting) == (0, [0.0] * 3)
