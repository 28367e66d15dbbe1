"""What a run is to be, as the user said it: one frozen object."""

from __future__ import annotations

from dataclasses import dataclass

from gymnasium import Space
from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.sync.rules import SyncRule
from clusterenv.wire.addresses import Network


@dataclass(frozen=True)
class Settings:
    """Everything that the head needs to know to start; see :class:`clusterenv.ClusterEnv`."""

    backend: Backend
    num_envs: int
    num_workers: int | None
    """None: as many as the hosts have cores."""
    launcher: Launcher
    min_hosts: int | None
    balance: bool
    observation_mode: str | tuple[Space, Space]  # type: ignore[type-arg]
    autoreset_mode: AutoresetMode
    sync_rule: SyncRule
    encoding: str
    trust_workers: bool
    limits: Limits
    network: Network
