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
from clusterenv.version import __version__

__all__ = [
    "CannotPickleError",
    "ClusterEnv",
    "ClusterEnvError",
    "ProtocolError",
    "RemoteError",
    "StartupError",
    "UntrustedValueError",
    "WorkerLostError",
    "__version__",
]
