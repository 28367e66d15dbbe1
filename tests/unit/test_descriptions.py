"""What a host says about its envs is read, and nothing of it is loaded that could do harm."""

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.errors import ProtocolError
from clusterenv.head.descriptions import description_reader, read_description
from clusterenv.plain.spaces import space_to_plain
from clusterenv.plain.values import pack
from tests.environments.spaces import ALL_SPACES

SPACE = spaces.Box(0.0, 1.0, (2,))


def described(action, observation=None):
    plain = {
        "observation_spaces": [space_to_plain(SPACE) if observation is None else observation],
        "action_spaces": [action],
        "metadata": {},
        "render_mode": None,
        "steps_together": False,
    }
    return pack(plain, allow_pickle=False)


def read(action, *, trusted=False):
    (space,) = read_description(described(action), 3, trusted)["action_spaces"]
    return space


def seeded(kind):
    space = spaces.Box(0.0, 1.0, (3,), seed=np.random.Generator(getattr(np.random, kind)(5)))
    return space, space_to_plain(space)


# Positions that NumPy reads beyond its memory with, and others that it does not check either.
BAD_STATES = {
    "MT19937": lambda state: state["state"].update(pos=2**31 - 1),
    "Philox": lambda state: state.update(buffer_pos=2**31 - 1),
    "SFC64": lambda state: state.update(state={}),
    "PCG64": lambda state: state["state"].update(state=-1),
    "PCG64DXSM": lambda state: state.update(bit_generator="os.system"),
}


@pytest.mark.parametrize("kind", BAD_STATES)
def test_no_random_state_of_a_host_is_loaded(kind):
    _, plain = seeded(kind)
    BAD_STATES[kind](plain[3])
    space = read(plain)
    assert space._np_random is None
    assert space.contains(space.sample())


def test_nor_that_of_a_space_within_another():
    inner = spaces.Discrete(3, seed=np.random.Generator(np.random.MT19937(5)))
    for space in (spaces.Dict(a=inner), spaces.Tuple([inner]), spaces.OneOf([inner])):
        plain = space_to_plain(space)
        read_back = read(plain)
        assert all(one._np_random is None for one in [read_back, *_children(read_back)])


def _children(space):
    return space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces


def test_the_random_state_of_this_machines_own_workers_is_taken_over():
    space, plain = seeded("MT19937")
    assert read(plain, trusted=True).sample().tolist() == space.sample().tolist()


@pytest.mark.parametrize("name", sorted(ALL_SPACES.keys() - {"custom", "box-subclass"}))
def test_every_space_of_gymnasium_is_read(name):
    space = ALL_SPACES[name]
    plain = space_to_plain(space)
    try:
        data = described(plain)
    except TypeError:
        pytest.skip("only a pickle could carry it")
    (same,) = read_description(data, 3, trusted=False)["action_spaces"]
    assert same == space


def test_what_workers_say_alike_is_read_once():
    read_again, data = description_reader(trusted=False), described(space_to_plain(SPACE))
    assert read_again(data, 3) is read_again(bytes(bytearray(data)), 3)
    other = described(space_to_plain(spaces.Discrete(2)))
    assert read_again(other, 3)["action_spaces"] == [spaces.Discrete(2)]


def box(**changes):
    plain = space_to_plain(SPACE)
    plain[2].update(changes)
    return plain


def discrete(n):
    return ["space", "Discrete", {"n": n, "start": 0, "dtype": "<i8"}, None]


ODD_SPACES = {
    "bounds of another shape": box(high=np.zeros(5, np.float32)),
    "bounds that are no arrays": box(low=1),
    "a dtype of objects": box(dtype="|O"),
    "no dtype": box(dtype=7),
    "bounded of another shape": box(bounded=(np.zeros(9, bool), np.zeros(9, bool))),
    "bounded that is text": box(bounded=("yes", "no")),
    "bounds in words that are none": box(text=({}, [])),
    "a Discrete that is huge": [
        "space",
        "Discrete",
        {"n": 2**70, "start": 0, "dtype": "<i8"},
        None,
    ],
    "a Discrete of nothing": ["space", "Discrete", {"n": 0, "start": 0, "dtype": "<i8"}, None],
    "keys without spaces": ["space", "Dict", {"keys": [1], "spaces": [], "sort_keys": 1}, None],
    "a Text without end": [
        "space",
        "Text",
        {"min_length": 0, "max_length": 2**60, "charset": "a"},
        None,
    ],
    "a space within itself": ["space", "Tuple", {"spaces": [7]}, None],
    "a number": 7,
}


@pytest.mark.parametrize("plain", ODD_SPACES.values(), ids=ODD_SPACES)
def test_what_no_space_can_be_made_of_is_the_hosts_fault(plain):
    with pytest.raises(ProtocolError, match="malformed description of"):
        read(plain)


def test_how_a_space_prints_is_bounded():
    assert len(repr(read(box(text=("x" * 10_000_000, "y"))))) < 200_000
