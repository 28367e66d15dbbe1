"""Runs at Weights & Biases. The only file that imports wandb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import wandb
except ImportError as error:
    raise ImportError("WandbLog needs Weights & Biases: pip install 'clusterenv[wandb]'") from error

STEP = "global_step"
"""The name of the steps, which are the x axis of all curves."""


class WandbLog:
    """Writes a run at Weights & Biases, or with ``mode="offline"`` a file for ``wandb sync``.

    Steps are a number of their own, ``global_step``, because W&B keeps one value per name and
    step of its own, and several episodes may end with the same step.

    Args:
        project: The project at W&B.
        **settings: Anything else that ``wandb.init`` takes: ``name``, ``mode``, ``dir``, ``tags``,
            or ``id`` and ``resume="must"`` to go on with a run.

    Attributes:
        run: W&B's own object while the run is open, such as for ``run.log_artifact``.

    Example:
        >>> log = WandbLog("lunar-lander", mode="offline")  # doctest: +SKIP
        >>> with Progress(1_000_000, logs=[log]) as progress:  # doctest: +SKIP
        ...     progress.collected(rollout, newest=envs.version)
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        if "config" in settings:
            raise ValueError("WandbLog(config=…): pass it as Progress(hyperparameters=…) instead")
        # A run of the user's own in this process stays theirs: it is not taken over, nor ended.
        self._settings = {"project": project, "reinit": "create_new", **settings}
        self.run: Any = None

    def open(self, hyperparameters: Mapping[str, Any], first_step: int) -> None:
        """Start the run; hyperparameters become its config."""
        config = {name: _as_json(value) for name, value in hyperparameters.items()}
        self.run = wandb.init(config=config, **self._settings)
        self.run.define_metric("*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row to the run's history."""
        self.run.log({**values, STEP: step})

    def close(self, *, failed: bool) -> None:
        """End the run, when everything is sent; W&B's own service ends with the script."""
        if self.run is not None:
            self.run.finish(exit_code=int(failed))


def _as_json(value: Any) -> Any:
    """Numbers, words and None as they are, anything else as it prints: paths, classes …"""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
