"""One space of every kind that Gymnasium has, and two of our own."""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)


class Card(NamedTuple):
    """An element of the custom space."""

    rank: int
    suit: str


class CardSpace(Space):
    """A custom space, of a class that Gymnasium knows nothing about."""

    def __init__(self, suits, seed=None):
        self.suits = suits
        super().__init__(None, None, seed)

    def sample(self, mask=None, probability=None):
        suit = self.suits[self.np_random.integers(len(self.suits))]
        return Card(int(self.np_random.integers(1, 14)), suit)

    def contains(self, x):
        return isinstance(x, Card) and x.suit in self.suits

    def __eq__(self, other):
        return isinstance(other, CardSpace) and self.suits == other.suits


class UnitBox(Box):
    """A subclass of a known space whose constructor takes other arguments than its parent's."""

    def __init__(self, size):
        super().__init__(0.0, 1.0, (size,), np.float32)


ALL_SPACES = {
    "box-float32": Box(-1.0, 1.0, (3,), np.float32),
    "box-float64-unbounded": Box(-np.inf, np.inf, (2, 2), np.float64),
    "box-half-bounded": Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.0]), dtype=np.float64),
    "box-float16": Box(-1.0, 1.0, (3,), np.float16),
    "box-int64": Box(-5, 5, (2,), np.int64),
    "box-image": Box(0, 255, (12, 10, 3), np.uint8),
    "box-scalar": Box(-1.0, 1.0, (), np.float32),
    "box-empty": Box(-1.0, 1.0, (0, 3), np.float32),
    "box-subclass": UnitBox(4),
    "discrete": Discrete(5, start=-2),
    "multidiscrete": MultiDiscrete([3, 2, 4]),
    "multidiscrete-2d": MultiDiscrete([[3, 2], [4, 5]], start=[[1, 0], [-1, 2]]),
    "multibinary": MultiBinary(4),
    "multibinary-2d": MultiBinary([2, 3]),
    "text": Text(8, min_length=0, charset="abcé☃"),
    "dict": Dict(
        position=Box(-1.0, 1.0, (2,), np.float32),
        inner=Dict(count=Discrete(3), image=Box(0, 255, (4, 4), np.uint8)),
    ),
    "tuple": Tuple((Discrete(3), Tuple((Box(0.0, 1.0, (2,)), MultiBinary(2))))),
    "sequence": Sequence(Box(-1.0, 1.0, (2,))),
    "sequence-stacked": Sequence(Box(-1.0, 1.0, (2,)), stack=True),
    "graph": Graph(Box(-1.0, 1.0, (2,)), Discrete(3)),
    "graph-without-edges": Graph(Discrete(4), None),
    "oneof": OneOf((Discrete(3), Box(-1.0, 1.0, (2,)), Text(3))),
    "custom": CardSpace(("hearts", "spades")),
    "dict-of-everything": Dict(
        box=Box(-1.0, 1.0, (2,), np.float32),
        cards=Tuple((CardSpace(("clubs",)), Discrete(2))),
        graph=Graph(Box(-1.0, 1.0, (2,)), Box(0.0, 1.0, (1,))),
        note=Text(5),
        path=Sequence(Discrete(3)),
    ),
}
