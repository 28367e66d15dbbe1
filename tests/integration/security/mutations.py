"""Honest messages in which some value has become another: what a host that lies could send."""

import random

import msgspec
import numpy as np
from gymnasium.spaces import GraphInstance

from clusterenv.arrays import bytes_of
from clusterenv.plain.infos import InfosByName, pack_infos, unpack_infos
from clusterenv.plain.values import pack, unpack
from clusterenv.wire.messages import (
    Built,
    FragmentMade,
    Hello,
    Leaving,
    Pull,
    Pulled,
    RowsMade,
    StaffReport,
    ValuesMade,
)

# How often a message of each kind is changed: rows are by far the most frequent.
_CHANCES = {
    RowsMade: 0.1,
    FragmentMade: 0.3,
    ValuesMade: 0.4,
    Built: 0.1,
    StaffReport: 0.1,
    Pulled: 0.1,
    Pull: 0.1,
    Hello: 0.03,
    Leaving: 0.5,
}
# The epoch says that an answer is late, and the cause which pull it is of: who lies about these
# goes without an answer, and is only slow.
_LEFT_ALONE = {"epoch", "cause"}


def _deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def odd_values():
    """Values that an honest host has no reason to send."""
    return [
        None,
        True,
        -1,
        0,
        2**31,
        2**63 - 1,
        -(2**63),
        2**64,
        2**5000,
        float("nan"),
        float("inf"),
        -0.0,
        1e308,
        1j,
        "",
        "x" * 10_000,
        "_x",
        "final_obs",
        "\x1b[2J\n",
        "\ud800",
        b"",
        b"\xff" * 100,
        [],
        {},
        (),
        {None: 1},
        {(): {2: {}}},
        {1, 2},
        frozenset(),
        _deep(50),
        {"x": _deep(30)},
        np.zeros(0),
        np.zeros(()),
        np.zeros((2, 3)),
        np.zeros((0, 2**40)),
        np.full(2, np.nan),
        np.full((2, 2), 2**62),
        np.full(2, 7, np.uint8).view(bool),
        np.zeros(2, "<M8[s]"),
        np.zeros(2, "<U3"),
        np.zeros(2, "|V5"),
        np.zeros(2, ">f4"),
        np.zeros(2, np.complex64),
        np.array([None, [1]], dtype=object),
        np.float16(1),
        np.int8(-1),
        np.bool_(True),
        np.str_("x"),
        np.datetime64("NaT"),
        GraphInstance(None, None, None),
        GraphInstance(np.zeros((1, 1)), np.zeros(9), 7),
    ]


class Mutations:
    """A lie for `LyingLauncher`: changes some of what it hears, by chance."""

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self.told = []

    def __call__(self, message, frames):
        if self._chance.random() > _CHANCES.get(type(message), 0.0):
            return None
        try:
            lie = self._change(message, frames)
        except (TypeError, msgspec.MsgspecError):
            return None  # it cannot even be sent
        self.told.append(lie)
        return [lie]

    def _change(self, message, frames):
        match message:
            case FragmentMade() if self._chance.random() < 0.9:
                return self._fragment(message, frames)
            case RowsMade() if frames and self._chance.random() < 0.3:
                return message, [self._noise(frames[0])]
        return self._struct(message), frames

    def _noise(self, frame):
        """Some bytes of the rows become others; or the flags, which NumPy takes as they are."""
        noisy = bytearray(frame)
        for _ in range(self._chance.choice([1, 8, len(noisy)])):
            noisy[self._chance.randrange(len(noisy))] = self._chance.choice([0, 2, 127, 255])
        return bytes(noisy)

    # Fields.

    def _struct(self, message):
        names = [name for name in message.__struct_fields__ if name not in _LEFT_ALONE]
        if not names:
            return message
        name = self._chance.choice(names)
        before = getattr(message, name)
        after = self._field(name, before)
        return msgspec.structs.replace(message, **{name: after})

    def _field(self, name, value):
        chance = self._chance
        match value:
            case bytes():
                return self._packed(name, value)
            case bool() | None:
                return value
            case int():
                return chance.choice([-1, 0, 1, 2**31, 2**62, value + 1])
            case float():
                return chance.choice([float("nan"), float("inf"), -1.0, 0.0, 1e300])
            case str():
                return chance.choice(["", "x" * 5_000, "\x1b[2J\n", value[::-1]])
            case tuple():
                return self._tuple(name, value)
            case dict():
                return {**value, "x" * chance.choice([1, 5_000]): "y"}
            case msgspec.Struct():
                return self._struct(value)
        return value

    def _tuple(self, name, value):
        chance = self._chance
        match chance.randrange(5 if value else 1):
            case 0:
                return value[:-1] if name != "extras" else ()
            case 1:
                return value + value[-1:]
            case 2:
                return value[::-1]
        place = chance.randrange(len(value))
        changed = self._field(name, value[place])
        return (*value[:place], changed, *value[place + 1 :])

    def _packed(self, name, data):
        """What is packed in a field, with another value somewhere in it."""
        if self._chance.random() < 0.05:
            return self._chance.randbytes(20)
        if name == "infos" and data:
            return self._infos(data)
        tree = unpack(data, allow_pickle=False) if data else None
        return pack(self._tree(tree), allow_pickle=False)

    def _infos(self, data):
        infos = unpack_infos(data, allow_pickle=False)
        by_slot = infos.by_slot() if isinstance(infos, InfosByName) else infos
        changed = [self._info(slot, info) for slot, info in by_slot]
        if self._chance.random() < 0.2:
            return b"s" + pack(self._tree(by_slot), allow_pickle=False)
        return pack_infos(changed, allow_pickle=False)

    def _info(self, slot, info):
        name = self._chance.choice([*info, *info, "x", "_x", "episode", "final_obs", 7, None])
        return slot, {**info, name: self._odd()}

    def _odd(self):
        return self._chance.choice(odd_values())

    def _tree(self, tree):
        """The same, but for one value somewhere within."""
        chance = self._chance
        if chance.random() < 0.2:
            return self._odd()
        match tree:
            case dict() if tree:
                key = chance.choice(list(tree))
                if chance.random() < 0.2:
                    return {k: v for k, v in tree.items() if k != key}
                return {**tree, key: self._tree(tree[key])}
            case list() | tuple() if tree and not isinstance(tree, GraphInstance):
                place = chance.randrange(len(tree))
                changed = [*tree[:place], self._tree(tree[place]), *tree[place + 1 :]]
                return type(tree)(changed)
            case np.ndarray():
                return self._array(tree)
        return self._odd()

    # Arrays.

    def _fragment(self, message, frames):
        arrays = {
            name: np.frombuffer(frame, dtype).reshape(shape)
            for name, (dtype, shape), frame in zip(
                message.names, message.arrays, frames, strict=True
            )
        }
        chance, name = self._chance, self._chance.choice(message.names)
        match chance.randrange(8):
            case 0:
                arrays.pop(name)
            case 1:
                prefix = chance.choice(["outputs/", "distribution/", "state/", "infos/", ""])
                arrays[prefix + chance.choice(["", "x", "log_prob"])] = arrays[name]
            case 2:
                arrays[name] = arrays[chance.choice(message.names)]
            case _:
                arrays[name] = self._array(arrays[name])
        kinds = tuple((array.dtype.str, array.shape) for array in arrays.values())
        lie = msgspec.structs.replace(message, names=tuple(arrays), arrays=kinds)
        return lie, [bytes_of(np.ascontiguousarray(array)) for array in arrays.values()]

    def _array(self, array):
        chance = self._chance
        match chance.randrange(9):
            case 0:
                return array[:-1]
            case 1:
                return array[None]
            case 2:
                return np.stack([array, array], -1)
            case 3:
                return array.astype(chance.choice(["<f8", "<f4", "<i8", "|b1", ">f4", "<c16"]))
            case 4:
                return np.zeros(array.shape, chance.choice(["<M8[s]", "<U2", "|V3", "<f2", "<f16"]))
            case 5 if array.dtype.kind == "f":
                return np.full_like(array, chance.choice([np.nan, np.inf, -np.inf, 1e38, -1e38]))
            case 6 if array.dtype.kind in "iu":
                return np.full_like(array, chance.choice([-1, 99, np.iinfo(array.dtype).max]))
            case 7 if array.dtype == np.bool_:
                return np.full(array.shape, 2, np.uint8).view(bool)
        return np.zeros_like(array)
