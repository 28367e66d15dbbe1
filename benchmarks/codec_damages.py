"""Coded observations as a host sends them, and what may happen to them on the way.

For ``codec_fuzz.py``: each is one array of a fragment with its header and frame.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from clusterenv.arrays import bytes_of
from clusterenv.plain.spaces import leaves_of
from clusterenv.wire.compression import BEST, ZLIB, compress
from clusterenv.wire.observation_codec import FINALS, OBSERVATIONS, Coding
from clusterenv.wire.stacks import NO_STACK, find_stack, write_stacks

NUM_STEPS, NUM_SLOTS, NUM_ENDS = 5, 2, 3
SPACE = spaces.Dict(
    {
        "frames first": spaces.Box(0, 255, (4, 7, 5), np.uint8),
        "frames last": spaces.Box(0, 255, (7, 5, 4), np.uint8),
        "larger frames": spaces.Box(0, 255, (4, 24, 24), np.uint8),
        "stacked floats": spaces.Box(-np.inf, np.inf, (3, 6), np.float32),
        "stacked integers": spaces.Box(-9, 9, (3, 4, 5), np.int16),
        "bits": spaces.MultiBinary((3, 4, 5)),
        "floats": spaces.Box(-np.inf, np.inf, (17,), np.float64),
        "number": spaces.Discrete(5),
    }
)
BOMB_BYTES = 64 << 20
AXES = (-(2**63), -1, 0, 1, 2, 3, 4, 5, 2**40, 2**63 - 1)
SIZES = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 255, 2**31, 2**62)


@dataclass(frozen=True)
class Sent:
    """One array of a fragment, as its header and frame say it."""

    coding: Coding
    dtype: str
    shape: tuple[int, ...]
    plain: bytes
    """What was compressed."""
    frame: bytes


def corpus(seed: int) -> list[Sent]:
    """Every leaf of the space, its rows and its finals, by every compression."""
    chance, sent = np.random.default_rng(seed), []
    for index, leaf in enumerate(leaves_of(SPACE)):
        assert leaf.dtype is not None
        rows = _rows_of(chance, leaf.shape, leaf.dtype)
        arrays = {f"{OBSERVATIONS}{index}": rows, f"{FINALS}{index}": rows[:NUM_ENDS, 0]}
        for name, array in arrays.items():
            axis = find_stack(array) if name.startswith(OBSERVATIONS) else NO_STACK
            plain = write_stacks(array, axis) if axis else bytes(bytes_of(array))
            for kind in dict.fromkeys((ZLIB, BEST)):
                coding, frame = Coding(name, kind, axis), compress(plain, kind)
                sent.append(Sent(coding, array.dtype.str, array.shape, plain, frame))
    return sent


def _rows_of(chance: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Stacks along the first or the last axis, whichever is shorter; one episode ends."""
    rows = chance.integers(0, 4, (NUM_STEPS + 1, NUM_SLOTS, *shape)).astype(dtype)
    if len(shape) > 1:
        axis = 2 if shape[0] <= shape[-1] else rows.ndim - 1
        stacks = np.moveaxis(rows, axis, 2)
        for step in range(NUM_STEPS):
            goes_on = slice(None) if step != 2 else slice(1)
            stacks[step + 1, goes_on, :-1] = stacks[step, goes_on, 1:]
    return rows


# What happens to them. Each function makes one of what was sent and of another that was.


def _changed(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, cut off, put in, taken out or said twice."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        start = chance.randrange(len(changed) + 1)
        stop = min(len(changed), start + chance.randrange(9))
        match chance.randrange(5):
            case 0 if start < len(changed):
                changed[start] = chance.randrange(256)
            case 1:
                del changed[start:]
            case 2:
                changed[start:start] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del changed[start:stop]
            case _:
                changed[start:start] = changed[start:stop]
    return bytes(changed)


def change_frame(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Damage what was compressed."""
    return replace(one, frame=_changed(one.frame, chance))


def change_inside(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Damage what comes out: it is compressed as it should be."""
    return replace(one, frame=compress(_changed(one.plain, chance), one.coding.compression))


def change_sizes(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Damage the first bytes, where zstd says how large the rest and its window are."""
    start = chance.randrange(4, 6)
    size = chance.choice((1, 2, 4, 8))
    frame = one.frame[:start] + chance.randbytes(size) + one.frame[start + size :]
    return replace(one, frame=frame)


def exchange_frames(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Send the frame of another, or the beginning of one and the end of the other."""
    cut = chance.choice((0, chance.randrange(len(one.frame) + 1)))
    return replace(one, frame=one.frame[:cut] + other.frame[cut:])


def change_coding(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Another axis, or another compression."""
    kind = chance.choice((one.coding.compression, ZLIB, BEST, "", "lzma", "\0" * 99))
    coding = Coding(one.coding.name, kind, chance.choice(AXES))
    return replace(one, coding=coding)


def change_header(one: Sent, other: Sent, chance: random.Random) -> Sent:
    """Another name, dtype or shape."""
    shape = list(chance.choice((one.shape, one.shape, other.shape)))
    if shape and chance.random() < 0.7:
        shape[chance.randrange(len(shape))] = chance.choice(SIZES)
    if chance.random() < 0.2:
        shape.insert(chance.randrange(len(shape) + 1), chance.choice(SIZES))
    name = chance.choice((one.coding.name, other.coding.name, "observations/²", "finals/-1", "x/"))
    dtype = chance.choice((one.dtype, one.dtype, other.dtype, "|O", "<U999999999", "nonsense"))
    coding = Coding(name, one.coding.compression, one.coding.axis)
    return replace(one, coding=coding, dtype=dtype, shape=tuple(shape))


class Bomb:
    """Few bytes that make many more than any array of the space."""

    def __init__(self) -> None:
        zeros = bytes(BOMB_BYTES)
        self._frames = {kind: compress(zeros, kind) for kind in (ZLIB, BEST)}
        # Without an end: only a reader that stops at the size it expects gets out of it.
        writer = zlib.compressobj(9)
        self._endless = writer.compress(zeros) + writer.flush(zlib.Z_SYNC_FLUSH)

    def __call__(self, one: Sent, other: Sent, chance: random.Random) -> Sent:
        kind = one.coding.compression
        frame = self._frames[kind]
        return replace(
            one, frame=self._endless if kind == ZLIB and chance.random() < 0.5 else frame
        )


Damage = Callable[[Sent, Sent, random.Random], Sent]


def damages() -> list[tuple[str, Damage, float]]:
    """What each is called, what it does, and how often it is done beside the others."""
    return [
        ("the frame", change_frame, 4.0),
        ("what was compressed", change_inside, 4.0),
        ("sizes in the frame", change_sizes, 1.0),
        ("the frame is another's", exchange_frames, 1.0),
        ("how it is coded", change_coding, 1.0),
        ("name, dtype and shape", change_header, 2.0),
        ("a bomb", Bomb(), 0.05),
    ]
