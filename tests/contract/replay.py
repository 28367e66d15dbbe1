"""The oracle of rollouts: single envs, seeded alike, that get the recorded actions."""

from dataclasses import dataclass, field

import numpy as np


def pick(tree, *index):
    """The same place in each array of a structure."""
    if isinstance(tree, dict):
        return {key: pick(value, *index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(pick(value, *index) for value in tree)
    return tree[index]


def leaves(tree):
    """The arrays of a structure, in a fixed order."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def arrays_of(fragment):
    """Every array of a fragment, by name."""
    named = {**vars(fragment), **vars(fragment.finals), **vars(fragment.episodes)}
    named["finals.observations"] = fragment.finals.observations
    named["observations"] = fragment.observations
    named["episodes.slots"], named["slots"] = fragment.episodes.slots, fragment.slots
    return {
        f"{name}/{index}": leaf
        for name, tree in named.items()
        for index, leaf in enumerate(leaves(tree))
        if isinstance(leaf, np.ndarray)
    }


def assert_same_fragment(actual, expected):
    """Fail unless two fragments or rollouts are bit-identical."""
    left, right = arrays_of(actual), arrays_of(expected)
    assert left.keys() == right.keys()
    for name, array in right.items():
        assert left[name].dtype == array.dtype, name
        assert np.array_equal(left[name], array), name


def assert_same_observation(actual, expected, place):
    for left, right in zip(leaves(actual), leaves(expected), strict=True):
        assert np.array_equal(left, np.asarray(right).astype(left.dtype)), (
            f"{place}: {actual} instead of {expected}"
        )


@dataclass
class Life:
    """One env, played on with the actions that a slot's column recorded."""

    env: object
    seed: int
    terminated: int = 0
    truncated: int = 0
    episodes: list = field(default_factory=list)

    def __post_init__(self):
        self.observation, _ = self.env.reset(seed=self.seed)
        self.rewards = []

    def assert_lived(self, fragment, column):
        """Fail unless every row of this column is what the env does next."""
        finals = dict(zip(zip(fragment.finals.steps, fragment.finals.columns), range(10**9)))
        ends = 0
        for t in range(fragment.num_steps):
            place = f"step {t} of column {column}"
            assert_same_observation(pick(fragment.observations, t, column), self.observation, place)
            action = pick(fragment.actions, t, column)
            after, reward, terminated, truncated, _ = self.env.step(action)
            assert fragment.rewards[t, column] == np.float64(reward), place
            assert fragment.terminated[t, column] == terminated, place
            assert fragment.truncated[t, column] == truncated, place
            next_observation = pick(fragment.next_observations, t, column)
            assert_same_observation(next_observation, after, f"what follows {place}")
            self.rewards.append(float(reward))
            if terminated or truncated:
                ends += 1
                final = pick(fragment.finals.observations, finals[t, column])
                assert_same_observation(final, after, f"the final observation at {place}")
                self._end(terminated)
            else:
                self.observation = after
        last = pick(fragment.observations, fragment.num_steps, column)
        assert_same_observation(last, self.observation, f"the last of column {column}")
        assert np.count_nonzero(fragment.finals.columns == column) == ends

    def _end(self, terminated):
        self.terminated += bool(terminated)
        self.truncated += not terminated
        self.episodes.append((sum(self.rewards), len(self.rewards)))
        self.rewards = []
        self.observation, _ = self.env.reset()


class Lives:
    """The lives of all slots of a ClusterEnv that was reset with `seed`."""

    def __init__(self, make, num_envs, seed):
        makers = make if isinstance(make, list) else [make] * num_envs
        self.by_slot = [Life(make(), seed + slot) for slot, make in enumerate(makers)]

    def assert_lived(self, fragment):
        for column, slot in enumerate(fragment.slots):
            self.by_slot[slot].assert_lived(fragment, column)

    @property
    def ends(self):
        """How many episodes have terminated, and how many were truncated."""
        lives = self.by_slot
        return sum(life.terminated for life in lives), sum(life.truncated for life in lives)

    def episodes(self):
        """(slot, return, length) of every episode so far, in each slot's own order."""
        return [
            (slot, *played) for slot, life in enumerate(self.by_slot) for played in life.episodes
        ]


def episodes_of(fragments):
    """(slot, return, length) of the episodes of consecutive fragments, as `Lives.episodes`."""
    rows = []
    for fragment in fragments:
        episodes = fragment.episodes
        rows += zip(episodes.slots, episodes.returns, episodes.lengths, strict=True)
    return sorted(rows, key=lambda row: row[0])
