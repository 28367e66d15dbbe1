"""Large frames travel in chunks, so that a stranger cannot make the head accept a large one.

libzmq's limit on the size of a frame applies before a peer has proved who it is. It can be small
because no frame is larger than a chunk. A full chunk means that more of its frame follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError

CHUNK_BYTES = 1 << 18
ENCRYPTION_BYTES = 64
"""How much longer a frame may be on the wire than its contents."""


def split(frames: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in frames no larger than a chunk, without a copy."""
    for frame in frames:
        if len(frame) < CHUNK_BYTES:
            yield frame
            continue
        view = memoryview(frame)
        # The last chunk is never full, and may be empty.
        for start in range(0, len(frame) + 1, CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]


def join(chunks: Sequence[Buffer], max_bytes: int) -> list[Buffer]:
    """Join frames that were :func:`split`; ProtocolError if they exceed ``max_bytes``."""
    size = sum(map(len, chunks))
    if size > max_bytes:
        advice = "let infos, calls and outputs of policies return less at a time"
        raise ProtocolError(f"a message of {size} bytes; the most is {max_bytes}: {advice}")
    frames: list[Buffer] = []
    begun: list[Buffer] = []
    for chunk in chunks:
        if len(chunk) == CHUNK_BYTES:
            begun.append(chunk)
            continue
        frames.append(b"".join([*begun, chunk]) if begun else chunk)
        begun = []
    if begun:
        raise ProtocolError("a message ends in the middle of a frame")
    return frames
