"""The user's settings of a run, as one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from clusterenv.backends.base import Backend
from clusterenv.launchers.base import Launcher
from clusterenv.limits import Limits
from clusterenv.sync.rules import SyncRule
from clusterenv.wire.addresses import Network


@dataclass(frozen=True)
class Settings:
    """Everything that the head needs to start; see :class:`clusterenv.ClusterEnv`."""

    backend: Backend
    num_envs: int
    num_workers: int | None
    """None for one per core of the hosts."""
    launcher: Launcher
    min_hosts: int | None
    balance: bool
    batch_size: int
    spec: EnvSpec | None
    """Set if the env is a registered one."""
    observation_mode: str | tuple[Space, Space]  # type: ignore[type-arg]
    autoreset_mode: AutoresetMode
    sync_rule: SyncRule
    encoding: str
    trust_workers: bool
    limits: Limits
    network: Network
    log_dir: Path | None
    """For a log per worker, on its host's machine."""

    @property
    def trusts_hosts(self) -> bool:
        """Whether hosts may send pickles."""
        return self.launcher.trusted or self.trust_workers
