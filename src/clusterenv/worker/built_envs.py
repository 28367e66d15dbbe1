"""The envs of a worker, and their stepper."""

from __future__ import annotations

import os
import pickle
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.backends.base import ThreadedBackend
from clusterenv.building_slots import building_for
from clusterenv.memory.messages import BuildEnvs
from clusterenv.worker.batch_stepper import BatchStepper
from clusterenv.worker.description import describe_envs, describe_vector, settle_autoreset_mode
from clusterenv.worker.stepper import EnvStepper, Stepper
from clusterenv.worker.vector_stepper import VectorStepper


class BuiltEnvs:
    """The envs of a worker, as its host told it to build them."""

    def __init__(self, build: BuildEnvs, notes: Any) -> None:
        self.build, self._notes = build, notes
        self.mode = AutoresetMode(build.autoreset_mode)
        built = self._make()
        if isinstance(built, VectorEnv):
            settle_autoreset_mode(built, self.mode)
            self.description = describe_vector(built)
        else:
            self.description = describe_envs(built, build.trusted)
        self.stepper = self._stepper_for(built, self.mode)
        self.batches: BatchStepper | None = None
        """Set if the engine can return the envs that are ready first."""
        if hasattr(type(built), "begin_batches"):
            self.batches = BatchStepper(built, build.slots)

    def _make(self, backend: bytes = b"", most: int | None = None) -> Any:
        slots = self.build.slots[:most]
        built_by = pickle.loads(backend or self.build.backend)
        _share_threads(built_by)
        return built_by.build(slots)

    def _stepper_for(self, built: Any, mode: AutoresetMode) -> Stepper:
        if isinstance(built, VectorEnv):
            return VectorStepper(built, self.build.slots, lambda: self._make(most=2))
        return EnvStepper(built, self.build.slots, mode, self._notes)

    def more(self, backend: bytes) -> Stepper:
        """Build more envs, of the same or another backend, which reset within the step."""
        with building_for("evaluation"):
            return self._stepper_for(self._make(backend), AutoresetMode.SAME_STEP)

    def close(self) -> None:
        """Close them."""
        self.stepper.close()


def _share_threads(backend: Any) -> None:
    """Give the policy as many threads as the engine has, since the two take turns."""
    if isinstance(backend, ThreadedBackend) and "CLUSTERENV_WORKER" in os.environ:
        threads = backend.num_threads or len(os.sched_getaffinity(0))
        os.environ["CLUSTERENV_THREADS"] = str(threads)
