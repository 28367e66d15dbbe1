"""ClusterEnv: reinforcement-learning environments on many machines, behind the Gymnasium API.

Everything common is here, and imported when it is first asked for: ``import clusterenv`` alone
loads neither PyTorch nor any cluster's client.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from clusterenv.version import __version__

if TYPE_CHECKING:  # the same names for type checkers and editors
    from clusterenv.backends.ale import AtariBackend
    from clusterenv.backends.base import Backend
    from clusterenv.backends.entry_points import EntryPointBackend
    from clusterenv.backends.envpool import EnvPoolBackend
    from clusterenv.backends.jax import JaxBackend
    from clusterenv.backends.vector import VectorBackend
    from clusterenv.building_slots import current_slot
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
    from clusterenv.launchers.attach import AttachLauncher
    from clusterenv.launchers.base import Launcher
    from clusterenv.launchers.in_process import InProcessLauncher
    from clusterenv.launchers.kubernetes import KubernetesLauncher
    from clusterenv.launchers.local import LocalLauncher
    from clusterenv.launchers.ray import RayLauncher
    from clusterenv.launchers.slurm import SlurmLauncher
    from clusterenv.launchers.ssh import SshLauncher
    from clusterenv.learning import decoupled_loss, gae, importance_weights, vtrace, with_values
    from clusterenv.limits import Limits
    from clusterenv.policies.base import Acted, Policy
    from clusterenv.policies.jax import JaxPolicy
    from clusterenv.policies.numpy import NumpyPolicy
    from clusterenv.policies.torch import TorchPolicy
    from clusterenv.rollout import Episodes, Fragment, Rollout
    from clusterenv.sync import (
        AdaptiveSync,
        BytesPerSecond,
        EffectiveSampleSize,
        EveryNth,
        EveryVersion,
        News,
        PullRate,
        SyncRule,
    )
    from clusterenv.sync.ledger import Ledger
    from clusterenv.wire.addresses import Network

__all__ = [
    "Acted",
    "AdaptiveSync",
    "AtariBackend",
    "AttachLauncher",
    "Backend",
    "BytesPerSecond",
    "CannotPickleError",
    "ClusterEnv",
    "ClusterEnvError",
    "EffectiveSampleSize",
    "EntryPointBackend",
    "EnvPoolBackend",
    "Episodes",
    "EveryNth",
    "EveryVersion",
    "Fragment",
    "InProcessLauncher",
    "JaxBackend",
    "JaxPolicy",
    "KubernetesLauncher",
    "Launcher",
    "Ledger",
    "Limits",
    "LocalLauncher",
    "Network",
    "News",
    "NumpyPolicy",
    "Policy",
    "ProtocolError",
    "PullRate",
    "RayLauncher",
    "RemoteError",
    "Rollout",
    "SlurmLauncher",
    "SshLauncher",
    "StartupError",
    "SyncRule",
    "TorchPolicy",
    "UntrustedValueError",
    "VectorBackend",
    "WorkerLostError",
    "__version__",
    "current_slot",
    "decoupled_loss",
    "gae",
    "importance_weights",
    "vtrace",
    "with_values",
]

_MODULE_BY_NAME = {
    "Acted": "clusterenv.policies.base",
    "AdaptiveSync": "clusterenv.sync",
    "AtariBackend": "clusterenv.backends.ale",
    "AttachLauncher": "clusterenv.launchers.attach",
    "Backend": "clusterenv.backends.base",
    "BytesPerSecond": "clusterenv.sync",
    "CannotPickleError": "clusterenv.errors",
    "ClusterEnv": "clusterenv.env",
    "ClusterEnvError": "clusterenv.errors",
    "EffectiveSampleSize": "clusterenv.sync",
    "EntryPointBackend": "clusterenv.backends.entry_points",
    "EnvPoolBackend": "clusterenv.backends.envpool",
    "Episodes": "clusterenv.rollout",
    "EveryNth": "clusterenv.sync",
    "EveryVersion": "clusterenv.sync",
    "Fragment": "clusterenv.rollout",
    "InProcessLauncher": "clusterenv.launchers.in_process",
    "JaxBackend": "clusterenv.backends.jax",
    "JaxPolicy": "clusterenv.policies.jax",
    "KubernetesLauncher": "clusterenv.launchers.kubernetes",
    "Launcher": "clusterenv.launchers.base",
    "Ledger": "clusterenv.sync.ledger",
    "Limits": "clusterenv.limits",
    "LocalLauncher": "clusterenv.launchers.local",
    "Network": "clusterenv.wire.addresses",
    "News": "clusterenv.sync",
    "NumpyPolicy": "clusterenv.policies.numpy",
    "Policy": "clusterenv.policies.base",
    "ProtocolError": "clusterenv.errors",
    "PullRate": "clusterenv.sync",
    "RayLauncher": "clusterenv.launchers.ray",
    "RemoteError": "clusterenv.errors",
    "Rollout": "clusterenv.rollout",
    "SlurmLauncher": "clusterenv.launchers.slurm",
    "SshLauncher": "clusterenv.launchers.ssh",
    "StartupError": "clusterenv.errors",
    "SyncRule": "clusterenv.sync",
    "TorchPolicy": "clusterenv.policies.torch",
    "UntrustedValueError": "clusterenv.errors",
    "VectorBackend": "clusterenv.backends.vector",
    "WorkerLostError": "clusterenv.errors",
    "current_slot": "clusterenv.building_slots",
    "decoupled_loss": "clusterenv.learning",
    "gae": "clusterenv.learning",
    "importance_weights": "clusterenv.learning",
    "vtrace": "clusterenv.learning",
    "with_values": "clusterenv.learning",
}


_MODULES = ("distributions",)

_PACKAGE_BY_NAME = {
    "JaxPolicy": "jax",
    "KubernetesLauncher": "kubernetes",
    "RayLauncher": "ray",
    "TorchPolicy": "torch",
}


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ValueError:  # somebody has put something else in its place
        return True


# A star import loads every name that is left, so those whose package is not there must go.
for _name, _package in _PACKAGE_BY_NAME.items():
    if _is_missing(_package):
        __all__.remove(_name)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"clusterenv.{name}")
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'clusterenv' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value  # the next time it is found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
