"""Hands out the envs and the newest policy, so that an episode can be played elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusterenv.backends.base import Backend
from clusterenv.head.publisher import Publisher
from clusterenv.status.showing import Showing, encode
from clusterenv.wire.parcels import Packer


@dataclass(frozen=True)
class Show:
    """Called by the status thread, only when somebody asks."""

    backend: Backend
    num_envs: int
    publisher: Publisher
    packer: Packer

    def __call__(self, slot: int) -> Iterator[bytes | bytearray]:
        """What playing an episode of ``slot`` takes; nothing if there is no such slot."""
        if slot >= self.num_envs:
            return iter(())
        newest, packer = self.publisher.newest, self.packer
        backend = packer.pack(self.backend.for_slots((slot,)), with_env_ids=True)
        path, folder = packer.search_path, packer.working_directory
        if newest is None:
            return encode(Showing(slot, 0, backend, b"", b"", path, folder), b"")
        take = newest.policy
        showing = Showing(slot, newest.version, backend, take.policy, take.layout, path, folder)
        return encode(showing, newest.snapshot.vector)
