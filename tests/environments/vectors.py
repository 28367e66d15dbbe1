"""Vector envs of walks, and single rows of what they return."""

from functools import partial

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clusterenv import ClusterEnv
from tests.environments.walks import Troubled, Walk

SHARED_MEMORY = {"shared_memory": True, "tcp": False}


def walks(num_envs, troubled=None, length=1000, **trouble):
    """One callable per slot; the env of slot `troubled` meets `trouble`."""
    makers = [partial(Walk, length)] * num_envs
    if troubled is not None:
        makers[troubled] = partial(Troubled, length=length, **trouble)
    return makers


def cluster(makers, transport="shared_memory", num_workers=2, **kwargs):
    return ClusterEnv(
        makers, num_workers=num_workers, shared_memory=SHARED_MEMORY[transport], **kwargs
    )


def oracle_of(num_envs, length=1000, autoreset_mode=AutoresetMode.NEXT_STEP):
    """What envs without trouble must return."""
    return SyncVectorEnv([partial(Walk, length)] * num_envs, autoreset_mode=autoreset_mode)


def actions_for(num_envs, number=0):
    """The `number`-th actions of a fixed series."""
    return np.random.default_rng(number).uniform(-1.0, 1.0, (num_envs, 2))


def row_of(answer, slot):
    """What one slot contributed to the answer of `reset` or `step`."""
    *arrays, infos = answer
    return (*(array[slot] for array in arrays), info_of(infos, slot))


def info_of(infos, slot):
    return {
        key: info_of(value, slot) if isinstance(value, dict) else value[slot]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][slot]
    }
