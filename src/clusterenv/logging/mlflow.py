"""Runs in MLflow. The only file that imports mlflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
except ImportError as error:
    raise ImportError("MlflowLog needs MLflow: pip install 'clusterenv[mlflow]'") from error

# What MLflow takes in one call.
_MOST_METRICS, _MOST_PARAMS = 1000, 100
_SEND_EVERY_S = 10.0


class MlflowLog:
    """Writes a run in MLflow, by a client of its own: ``mlflow.start_run`` is not touched.

    Numbers are sent together, every ten seconds and at the end, because each call to a tracking
    server takes its time. A server that cannot be reached raises MLflow's own exception, after
    MLflow's own attempts.

    Args:
        experiment: The name of the experiment; it is made if it does not exist.
        tracking_uri: A server or a database, such as ``"sqlite:///mlflow.db"``; None: what MLflow
            itself would take, such as ``$MLFLOW_TRACKING_URI``.
        run_name: The name of the run; None: MLflow makes one up.
        run_id: A run to go on with, instead of a new one.
        clock: Tells the seconds between two calls.

    Attributes:
        run_id: The run that is written, once it is open.

    Example:
        >>> log = MlflowLog("lunar-lander", "sqlite:///mlflow.db")  # doctest: +SKIP
        >>> with Progress(1_000_000, logs=[log]) as progress:  # doctest: +SKIP
        ...     progress.collected(rollout, newest=envs.version)
    """

    def __init__(
        self,
        experiment: str = "clusterenv",
        tracking_uri: str | None = None,
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment, self._tracking_uri = experiment, tracking_uri
        self._run_name, self.run_id = run_name, run_id
        self._clock = clock
        self._client: Any = None
        self._is_running = False
        self._unsent: list[Metric] = []
        self._sent_s = 0.0

    def open(self, hyperparameters: Mapping[str, Any], first_step: int) -> None:
        """Start the run, or go on with ``run_id``; hyperparameters become its parameters."""
        self._client = MlflowClient(tracking_uri=self._tracking_uri)
        self._sent_s = self._clock()
        if self.run_id is None:
            made = self._client.create_run(self._experiment_id(), run_name=self._run_name)
            self.run_id = made.info.run_id
        else:
            self._client.update_run(self.run_id, status="RUNNING")
        self._is_running = True
        # MLflow refuses another value for a parameter that a run has already.
        known = self._client.get_run(self.run_id).data.params
        new = [Param(n, str(v)) for n, v in hyperparameters.items() if n not in known]
        for some in _in_parts(new, _MOST_PARAMS):
            self._client.log_batch(self.run_id, params=some)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of these metrics; sent by the call that comes ten seconds later."""
        now_ms = int(time.time() * 1000)
        self._unsent += [Metric(name, v, now_ms, step) for name, v in values.items()]
        if self._clock() - self._sent_s >= _SEND_EVERY_S:
            self._send()

    def close(self, *, failed: bool) -> None:
        """Send what is left and end the run, as ``FINISHED`` or ``FAILED``."""
        if not self._is_running:
            return
        try:
            self._send()
        finally:
            self._is_running = False
            self._client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")

    def _send(self) -> None:
        for some in _in_parts(self._unsent, _MOST_METRICS):
            self._client.log_batch(self.run_id, metrics=some)
        self._unsent.clear()
        self._sent_s = self._clock()

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment))


def _in_parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
