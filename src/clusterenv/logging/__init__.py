"""Where the numbers of a run go: a progress line, TensorBoard, Weights & Biases, MLflow.

Each name is imported when it is first asked for: a log needs its package only where it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors
    from clusterenv.logging.base import Log
    from clusterenv.logging.mlflow import MlflowLog
    from clusterenv.logging.progress import CurvePoint, Progress
    from clusterenv.logging.scalars import fragment_scalars, ledger_scalars
    from clusterenv.logging.tensorboard import TensorBoardLog
    from clusterenv.logging.wandb import WandbLog

__all__ = [
    "CurvePoint",
    "Log",
    "MlflowLog",
    "Progress",
    "TensorBoardLog",
    "WandbLog",
    "fragment_scalars",
    "ledger_scalars",
]

_MODULE_BY_NAME = {
    "CurvePoint": "progress",
    "Log": "base",
    "MlflowLog": "mlflow",
    "Progress": "progress",
    "TensorBoardLog": "tensorboard",
    "WandbLog": "wandb",
    "fragment_scalars": "scalars",
    "ledger_scalars": "scalars",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'clusterenv.logging' has no attribute {name!r}")
    value = getattr(import_module(f"clusterenv.logging.{_MODULE_BY_NAME[name]}"), name)
    globals()[name] = value  # the next time it is found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
