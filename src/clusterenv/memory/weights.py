"""The newest weights, once per machine: the host writes them, its workers take copies."""

from __future__ import annotations

import os

from clusterenv.arrays import Buffer
from clusterenv.memory.answer_flags import barrier
from clusterenv.memory.segments import allocate, create, map_memory

_HEADER_BYTES = 64
_SEQUENCE, _POLICY, _VERSION, _OFFSET, _SIZE, _OLDER, _OLDER_OFFSET, _OLDER_SIZE = range(8)


class WeightStore:
    """One vector with its version, in memory that a host and all its workers share.

    There is room for two: the next one is written beside the one that workers may be copying, and
    only then becomes the newest. A worker that was too slow notices, and copies again. The older
    one can still be read by its version until it is overwritten.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map()

    @staticmethod
    def create() -> WeightStore:
        """An empty store; OSError if there is no memory."""
        return WeightStore(create("weights", _HEADER_BYTES))

    @property
    def fd(self) -> int:
        """The descriptor that workers inherit."""
        return self._fd

    def _map(self) -> None:
        self._memory = map_memory(self._fd, os.fstat(self._fd).st_size)
        self._header = self._memory[:_HEADER_BYTES].cast("q")

    def put(self, policy_id: int, version: int, vector: Buffer | bytearray) -> None:
        """Make these the newest weights; OSError if there is no memory."""
        header, size = self._header, len(vector)
        room = (len(self._memory) - _HEADER_BYTES) // 2
        older = header[_VERSION] if header[_POLICY] == policy_id else 0
        if size > room:
            allocate(self._fd, _HEADER_BYTES + 2 * size)
            self._map()
            header, room, older = self._header, size, 0
            # The halves are elsewhere now, and may overlap what a worker is copying.
            self._begin(header)
        # A worker that is copying the older one checks this again when it is done.
        header[_OLDER] = 0
        barrier()
        # The half that no reader has been pointed to since the last time.
        offset = _HEADER_BYTES if header[_OFFSET] != _HEADER_BYTES else _HEADER_BYTES + room
        self._memory[offset : offset + size] = vector
        self._begin(header)
        header[_OLDER_OFFSET], header[_OLDER_SIZE] = header[_OFFSET], header[_SIZE]
        header[_POLICY], header[_VERSION], header[_OLDER] = policy_id, version, older
        header[_OFFSET], header[_SIZE] = offset, size
        barrier()
        header[_SEQUENCE] += 1

    def _begin(self, header: memoryview) -> None:
        """Make the sequence odd, which it is while somebody writes."""
        header[_SEQUENCE] |= 1
        barrier()

    def take(
        self, policy_id: int, newer_than: int, wanted: int = 0
    ) -> tuple[int, bytearray] | None:
        """Version and vector, if they are of this policy and newer than the caller's.

        They are those of version ``wanted`` while the store has it, otherwise the newest.
        """
        while True:
            header = self._header
            sequence = header[_SEQUENCE]
            held, version = header[_POLICY], header[_VERSION]
            offset, size = header[_OFFSET], header[_SIZE]
            is_older = bool(wanted) and header[_OLDER] == wanted
            if is_older:
                version, offset, size = wanted, header[_OLDER_OFFSET], header[_OLDER_SIZE]
            if offset + size > len(self._memory):
                self._map()
                continue
            if sequence % 2 == 0 and (held != policy_id or version <= newer_than):
                return None
            vector = bytearray(self._memory[offset : offset + size])
            barrier()
            is_whole = not is_older or header[_OLDER] == wanted
            if sequence % 2 == 0 and header[_SEQUENCE] == sequence and is_whole:
                return version, vector

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)
