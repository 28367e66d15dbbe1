"""ClusterEnv: reinforcement-learning environments on many machines, behind the Gymnasium API."""

from clusterenv.env import ClusterEnv
from clusterenv.errors import (
    CannotPickleError,
    ClusterEnvError,
    ProtocolError,
    RemoteError,
    StartupError,
    UntrustedValueError,
    WorkerLostError,
)
from clusterenv.rollout import Episodes, Fragment, Rollout
from clusterenv.sync import AdaptiveSync, EveryNth, EveryVersion
from clusterenv.version import __version__

__all__ = [
    "AdaptiveSync",
    "CannotPickleError",
    "ClusterEnv",
    "ClusterEnvError",
    "Episodes",
    "EveryNth",
    "EveryVersion",
    "Fragment",
    "ProtocolError",
    "RemoteError",
    "Rollout",
    "StartupError",
    "UntrustedValueError",
    "WorkerLostError",
    "__version__",
]
