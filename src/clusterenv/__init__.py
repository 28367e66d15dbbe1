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
from clusterenv.limits import Limits
from clusterenv.rollout import Episodes, Fragment, Rollout
from clusterenv.sync import AdaptiveSync, EveryNth, EveryVersion
from clusterenv.version import __version__
from clusterenv.wire.addresses import Network

__all__ = [
    "AdaptiveSync",
    "CannotPickleError",
    "ClusterEnv",
    "ClusterEnvError",
    "Episodes",
    "EveryNth",
    "EveryVersion",
    "Fragment",
    "Limits",
    "Network",
    "ProtocolError",
    "RemoteError",
    "Rollout",
    "StartupError",
    "UntrustedValueError",
    "WorkerLostError",
    "__version__",
]
