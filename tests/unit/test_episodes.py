"""Episodes that end are counted, with their returns and lengths, while somebody looks."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from clusterenv.head.episodes import EpisodeLog
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.requests import Collect, Newest


class Scene:
    def __init__(self, mode=AutoresetMode.NEXT_STEP, num_envs=2):
        self.num_envs = num_envs
        self.log = EpisodeLog(num_envs, mode, lambda: 5.0)

    def step(self, rewards, ended=(), some=None):
        flags = np.zeros(self.num_envs, bool)
        flags[list(ended)] = True
        # An episode may end in either way.
        ends = [flags, np.zeros_like(flags)]
        self.log.note_rows(np.array(rewards), *ends[:: 1 if len(self.seen) % 2 else -1], some)

    @property
    def seen(self):
        return [(one.slot, one.total_reward, one.length) for one in self.log.recent]


def part(slots, ended, returns, lengths):
    arrays = {"slots": ended, "returns": returns, "lengths": lengths}
    named = {f"finals/{name}": np.array(values) for name, values in arrays.items()}
    return FragmentPart(Collect(1, slots, 8, Newest(1, 1)), slots, 1, named)


def test_an_episode_that_began_before_anybody_looked_does_not_count():
    scene = Scene()
    scene.log.watch(True)
    scene.step([1.0, 2.0], ended=[0])
    assert scene.seen == []
    scene.step([0.0, 2.0])  # slot 0 resets
    scene.step([3.0, 2.0])
    scene.step([4.0, 2.0], ended=[0, 1])
    assert scene.seen == [(0, 7.0, 2)]
    assert scene.log.count == 1
    assert scene.log.recent[0].time_s == 5.0


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_where_an_episode_ends_without_a_row_for_the_reset_the_next_row_counts(mode):
    scene = Scene(mode)
    scene.log.watch(True)
    scene.log.note_reset([0, 1], has_row=False)
    scene.step([1.0, 1.0], ended=[1])
    scene.step([1.0, 5.0], ended=[0, 1])
    assert scene.seen == [(1, 1.0, 1), (0, 2.0, 2), (1, 5.0, 1)]


def test_partial_batches_count_the_rows_of_their_slots_but_not_that_of_the_reset():
    scene = Scene()
    scene.log.watch(True)
    scene.log.note_reset([0, 1], has_row=True)
    scene.step([0.0, 9.0], some=[0])
    scene.step([1.0, 9.0], some=[0])
    scene.step([1.0, 9.0], ended=[0, 1], some=[0])
    assert scene.seen == [(0, 2.0, 2)]


def test_a_lost_env_ends_no_episode():
    scene = Scene()
    scene.log.watch(True)
    scene.log.note_reset([0, 1], has_row=False)
    scene.step([1.0, 1.0])
    scene.log.forget([1])
    scene.step([1.0, 0.0], ended=[0, 1])
    assert scene.seen == [(0, 2.0, 2)]


def test_who_looks_again_does_not_see_halves_of_episodes():
    scene = Scene()
    scene.log.watch(True)
    scene.log.note_reset([0, 1], has_row=False)
    scene.log.watch(False)
    assert not scene.log.is_watched
    scene.log.watch(True)
    scene.step([1.0, 1.0], ended=[0, 1])
    assert scene.seen == []


def test_what_workers_count_in_fragments_is_taken_even_if_nobody_looks():
    scene = Scene()
    scene.log.note_fragment(part((0, 1), [1, 1], [3.0, 4.0], [6, 7]))
    scene.log.note_fragment(part((0, 1), [], [], []))
    assert scene.seen == [(1, 3.0, 6), (1, 4.0, 7)]


def test_steps_after_a_fragment_go_on_with_episodes_of_which_nobody_knows_the_beginning():
    scene = Scene()
    scene.log.watch(True)
    scene.log.note_reset([0, 1], has_row=False)
    scene.log.note_fragment(part((0,), [], [], []))
    scene.step([1.0, 1.0], ended=[0, 1])
    assert scene.seen == [(1, 1.0, 1)]


def test_of_very_many_episodes_the_last_are_kept_and_all_are_counted():
    scene = Scene(num_envs=300)
    every = list(range(300))
    scene.log.note_fragment(part(tuple(every), every, [1.0] * 300, [1] * 300))
    assert scene.log.count == 300
    assert [slot for slot, *_ in scene.seen] == every[-100:]


def test_a_return_that_is_no_number_is_left_out():
    scene = Scene()
    scene.log.note_fragment(part((0, 1), [0, 1], [np.inf, 2.0], [3, 4]))
    assert scene.seen == [(1, 2.0, 4)]
