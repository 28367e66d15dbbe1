"""What another process of the same user needs to play an episode of a run.

A visitor connects to the run's socket from a named socket of its own: the kernel tells the head
that name, which says what is wanted. So the head still reads nothing from visitors.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator

import msgspec

_NAME = re.compile(rb"\0clusterenv-show/([0-9]{1,9})/[0-9a-f]{16}")
_SIZE = struct.Struct("<Q")


class Showing(msgspec.Struct, frozen=True):
    """An env and the newest policy: pickles that a process of the same user may open."""

    slot: int
    version: int
    """0 before anything was published."""
    backend: bytes
    """Builds the env of this slot."""
    policy: bytes
    layout: bytes
    """The layout of the weights, which follow separately."""
    search_path: tuple[str, ...]
    working_directory: str


def name_for(slot: int) -> str:
    """The name of a socket that asks for this slot."""
    return f"\0clusterenv-show/{slot}/{secrets.token_hex(8)}"


def slot_in(name: object) -> int | None:
    """The slot that the socket of this name asks for; None if it wants the status."""
    match = _NAME.fullmatch(name) if isinstance(name, bytes) else None
    return None if match is None else int(match.group(1))


def encode(showing: Showing, weights: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """Encode in pieces, so that the weights are sent from where they are."""
    header = msgspec.msgpack.encode(showing)
    yield _SIZE.pack(len(header)) + header
    yield weights


def decode(data: bytes) -> tuple[Showing, bytes]:
    """What :func:`encode` made; ``msgspec.MsgspecError`` if it is malformed."""
    if len(data) < _SIZE.size:
        raise msgspec.DecodeError("this is too short")
    (size,) = _SIZE.unpack_from(data)
    end = _SIZE.size + size
    return msgspec.msgpack.decode(data[_SIZE.size : end], type=Showing), data[end:]
