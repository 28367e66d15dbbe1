"""What the doctor runs on workers: an env that reports its machine and tries out others."""

from __future__ import annotations

import time
import traceback
from typing import Any

import gymnasium
import msgspec

from clusterenv.memory.shared_rows import SharedRows
from clusterenv.plain.spaces import leaves_of, single_array_leaf
from clusterenv.tools.checks.machine import machine_facts, memory_trouble

_NUM_STEPS = 50
_AT_MOST_S = 2.0


class ProbeEnv(gymnasium.Env[Any, Any]):
    """Its reset is one round trip, with as many bytes as its options ask for."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The time here, and ``options["reply_bytes"]`` bytes."""
        super().reset(seed=seed)
        reply = bytes((options or {}).get("reply_bytes", 0))
        return 0, {"time_s": time.time(), "reply": reply}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Do nothing."""
        return 0, 0.0, False, False, {}

    def machine(self) -> dict[str, Any]:
        """The facts about the machine of this worker."""
        return msgspec.structs.asdict(machine_facts())

    def try_out(self, backend: Any, num_envs: int) -> dict[str, Any]:
        """Build one env of ``backend``, reset and step it; returns what it is like, or the error.

        ``num_envs`` is how many of them this machine's host will have.
        """
        try:
            return _try_out(backend, num_envs)
        except Exception as error:
            return {
                "error": f"{type(error).__name__}: {error}",
                "missing": _missing_module(error),
                "traceback": traceback.format_exc(),
            }


def _try_out(backend: Any, num_envs: int) -> dict[str, Any]:
    began = time.perf_counter()
    (env,) = backend.build((0,))
    try:
        env.reset(seed=0)
        ready = time.perf_counter()
        steps = _step(env, ready + _AT_MOST_S)
        num_bytes = _rows_bytes(env, num_envs)
        return {
            "build_s": ready - began,
            "step_s": (time.perf_counter() - ready) / steps,
            "rows_bytes": num_bytes,
            "rows_trouble": memory_trouble(num_bytes),
        }
    finally:
        env.close()


def _step(env: gymnasium.Env[Any, Any], until: float) -> int:
    for number in range(1, _NUM_STEPS + 1):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        if time.perf_counter() > until:
            return number
    return _NUM_STEPS


def _rows_bytes(env: gymnasium.Env[Any, Any], num_envs: int) -> int:
    """The shared memory that the rows of ``num_envs`` such envs take."""
    action = single_array_leaf(env.action_space)
    return SharedRows.size_of(num_envs, action, leaves_of(env.observation_space))


def _missing_module(error: BaseException | None) -> str:
    """The module that could not be imported, anywhere in the chain of causes."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        error = error.__cause__ or error.__context__
    return ""
