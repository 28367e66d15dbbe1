"""Returns and lengths of the episodes that end within fragments."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from clusterenv.worker.episode_ends import EpisodeEnds
from clusterenv.worker.translator import Translator

COUNT = 5


def ends_of(has_ended):
    """The ends of a fragment, [T, n], as steps would have added them."""
    ends = EpisodeEnds(Translator(Discrete(2), Discrete(2)), {slot: slot for slot in range(COUNT)})
    steps, columns = np.nonzero(has_ended)
    ends.steps, ends.columns = steps.tolist(), columns.tolist()
    return ends


def one_by_one(rewards, has_ended, returns, lengths):
    """The same, episode by episode."""
    found, begun = [], np.zeros(COUNT, int)
    for step, column in np.argwhere(has_ended):
        piece = np.ascontiguousarray(rewards[begun[column] : step + 1, column])
        found.append((returns[column] + np.sum(piece), lengths[column] + len(piece)))
        returns[column], lengths[column], begun[column] = 0.0, 0, step + 1
    for column in range(COUNT):
        piece = np.ascontiguousarray(rewards[begun[column] :, column])
        returns[column] += np.sum(piece)
        lengths[column] += len(piece)
    return found


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_episodes_that_span_fragments_sum_up_as_one_by_one_to_the_last_bit(share):
    rng = np.random.default_rng(1)
    returns, lengths = np.zeros((2, COUNT)), np.zeros((2, COUNT), np.int64)
    for num_steps in (1, 7, 100, 300):
        rewards = rng.normal(size=(num_steps, COUNT)) * 100
        has_ended = rng.random((num_steps, COUNT)) < share
        expected = one_by_one(rewards, has_ended, returns[1], lengths[1])
        found = ends_of(has_ended).returns_and_lengths(rewards, returns[0], lengths[0])
        assert list(zip(*found, strict=True)) == expected
        assert np.array_equal(*returns)
        assert np.array_equal(*lengths)
