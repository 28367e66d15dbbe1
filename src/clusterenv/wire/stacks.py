"""Frames of a stack once: how observations that share frames with those before are told apart.

An env that stacks its last K frames observes K − 1 of them again at the next step. Whichever
wrapper made the stack, and along whichever axis, that is found by comparing. Rows are [T, n, …]:
T steps of n slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterenv.arrays import Array, Buffer, bytes_of
from clusterenv.errors import ProtocolError

NO_STACK = 0
"""In place of the axis of the stack, which is never that of the steps."""
_LARGEST_STACK = 64
_NUM_LOOKED_AT = 4


def find_stack(rows: Array) -> int:
    """The axis along which the next row is this one moved on by one frame, or ``NO_STACK``."""
    is_plain = rows.dtype.kind in "buif" and rows.itemsize <= 8
    candidates = (2, rows.ndim - 1) if is_plain and rows.ndim >= 4 and len(rows) > 1 else ()
    for axis in candidates:
        if 2 <= rows.shape[axis] <= _LARGEST_STACK:
            some = np.moveaxis(rows[: _NUM_LOOKED_AT + 1, :1], axis, 2)
            if _moved_on(some).any():
                return axis
    return NO_STACK


def write_stacks(rows: Array, axis: int) -> bytes:
    """Which rows are moved on, the newest frame of those, and all of the others; slot by slot."""
    by_slot = np.moveaxis(rows, axis, 2).swapaxes(0, 1)
    moved_on = _moved_on(np.moveaxis(rows, axis, 2)).T
    whole = np.ones(by_slot.shape[:2], np.bool_)
    whole[:, 1:] = ~moved_on
    newest = by_slot[:, 1:, -1][moved_on]
    return b"".join((np.packbits(moved_on).tobytes(), bytes_of(newest), bytes_of(by_slot[whole])))


def check_axis(shape: tuple[int, ...], axis: int) -> None:
    """ProtocolError if rows of this shape cannot be stacks along ``axis``."""
    if not (2 <= axis < len(shape) and len(shape) >= 4 and min(shape) > 0):
        raise ProtocolError(f"no stack along axis {axis} of shape {shape!r:.80}")


def most_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """The most that :func:`write_stacks` makes of rows of this shape."""
    steps, slots = shape[:2]
    return _mask_bytes(steps, slots) + int(np.prod(shape, dtype=object)) * itemsize


def read_stacks(data: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int) -> Array:
    """The rows that were written; ProtocolError if they are none of this shape."""
    check_axis(shape, axis)
    rows: Array = np.empty(shape, dtype)
    by_slot = np.moveaxis(rows, axis, 2).swapaxes(0, 1)
    moved_on, newest, others = _split(data, by_slot)
    whole = np.ones(by_slot.shape[:2], np.bool_)
    whole[:, 1:] = ~moved_on
    by_slot[whole] = others
    by_slot[:, 1:, -1][moved_on] = newest
    _fill_in(by_slot, moved_on)
    return rows


def _moved_on(rows: Array) -> Array:
    """[T − 1, n]: whether a row is the one before moved on by a frame; frames along axis 2."""
    before, after = rows[:-1, :, 1:], rows[1:, :, :-1]
    # Not (before == after): NaN is to be found again too, and -0.0 is not 0.0.
    same = _bits(before) == _bits(after)
    return np.asarray(same.all(axis=tuple(range(2, same.ndim))))


def _bits(array: Array) -> Array:
    return array if array.dtype.kind in "bui" else array.view(f"u{array.itemsize}")


def _mask_bytes(steps: int, slots: int) -> int:
    return -(-slots * max(steps - 1, 0) // 8)


def _split(data: Buffer, by_slot: Array) -> tuple[Array, Array, Array]:
    """Which rows are moved on, the newest frame of those, and the other rows."""
    slots, steps = by_slot.shape[:2]
    start = _mask_bytes(steps, slots)
    if len(data) < start:
        raise ProtocolError("too few bytes for the rows of a stack")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, start), count=slots * (steps - 1))
    moved_on = bits.reshape(slots, steps - 1).astype(np.bool_)
    num_newest = int(moved_on.sum())
    frame, row = by_slot.shape[3:], by_slot.shape[2:]
    middle = start + num_newest * int(np.prod(frame)) * by_slot.itemsize
    num_others = slots * steps - num_newest
    if len(data) != middle + num_others * int(np.prod(row)) * by_slot.itemsize:
        raise ProtocolError("the rows of a stack have other sizes than they say")
    flat = np.frombuffer(data, np.uint8)
    newest = flat[start:middle].view(by_slot.dtype).reshape(num_newest, *frame)
    return moved_on, newest, flat[middle:].view(by_slot.dtype).reshape(num_others, *row)


def _fill_in(by_slot: Array, moved_on: Array) -> None:
    """The older frames of each row that is moved on are in the row before."""
    for step in range(moved_on.shape[1]):
        slots = moved_on[:, step]
        if slots.all():
            by_slot[:, step + 1, :-1] = by_slot[:, step, 1:]
        elif slots.any():
            by_slot[slots, step + 1, :-1] = by_slot[slots, step, 1:]
