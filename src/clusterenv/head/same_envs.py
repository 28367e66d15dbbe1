"""Notices a backend whose VectorEnvs are the same on every worker."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from clusterenv.arrays import Array
from clusterenv.head.session import Session


def warn_of_same_envs(session: Session) -> None:
    """Warn if the VectorEnvs of two workers begin alike; call it right after a reset of all slots.

    If all envs of a worker begin alike, nothing can be concluded.
    """
    if not session.agreed.steps_together:
        return
    blocks = [tuple(worker.slots) for worker in session.fleet.workers]
    starts = [session.batch.leaves_of(slots) for slots in blocks]
    for block, start in zip(blocks[1:], starts[1:], strict=True):
        if begin_alike(starts[0], start):
            warnings.warn(
                f"slots {blocks[0][0]}..{blocks[0][-1]} and {block[0]}..{block[-1]} begin with the "
                "same observations: the backend gives every worker the same envs. If its engine "
                "takes seeds only when it is made, pass VectorBackend a factory(slots, seeds)",
                UserWarning,
                stacklevel=4,
            )
            return


def begin_alike(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Whether the rows of two workers are the same, though those of one worker differ."""
    count = min((len(array) for array in [*one, *other]), default=0)
    if count < 2:
        return False
    same = all(np.array_equal(a[:count], b[:count]) for a, b in zip(one, other, strict=True))
    return same and any(not np.array_equal(array[0], array[1]) for array in one)
