"""What libraries with one env per index need: each slot's own infos, and calls to some slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium
from gymnasium.vector import AutoresetMode

from clusterenv.construction import choose_wrappers
from clusterenv.env import ClusterEnv


class EnvsBySlot(ClusterEnv):
    """A ClusterEnv that keeps its slots apart, for adapters.

    ``reset`` and ``step`` return infos as ``{slot: info}``, exactly as the envs made them: merged
    into arrays, an int may become a float, and arrays of different shapes are refused.

    Args:
        env: As in :class:`clusterenv.ClusterEnv`, and so are all others, save two.
        num_envs: How many envs.
        num_workers: How many workers.
        wrappers: Applied to each env, first to last.
        autoreset_mode: SAME_STEP, because these libraries reset within the step.
        copy: True, because they keep observations beyond the next step.
        **kwargs: Passed to :class:`clusterenv.ClusterEnv`.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int | None = None,
        num_workers: int | None = None,
        *,
        wrappers: Any = (),
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        copy: bool = True,
        **kwargs: Any,
    ) -> None:
        self.closed = True
        if AutoresetMode(autoreset_mode) is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"autoreset_mode={autoreset_mode} does not fit here: an env must be reset within "
                "the step that ends its episode; leave it out, or pass AutoresetMode.SAME_STEP"
            )
        if not copy:
            raise ValueError(
                "copy=False does not fit here: observations are kept beyond the next step, which "
                "would overwrite them; leave it out, or pass copy=True"
            )
        self.is_reachable = not hasattr(env, "for_slots")
        if self.is_reachable:
            wrappers = (*choose_wrappers(wrappers), ReachableEnv)
        super().__init__(
            env,
            num_envs,
            num_workers,
            wrappers=wrappers,
            autoreset_mode=AutoresetMode.SAME_STEP,
            **kwargs,
        )

    def _add_info(
        self, vector_infos: dict[Any, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[Any, Any]:
        vector_infos.setdefault(env_num, {}).update(env_info)
        return vector_infos

    def allow_step_before_reset(self) -> None:
        """Leave it to the envs whether they can be stepped now, as these libraries do."""
        self._calls.has_reset = True

    def __getitem__(self, slot: Any) -> NoReturn:
        raise TypeError(
            "the envs run in other processes, and cannot be taken out: use get_attr, set_attr and "
            f"env_method with indices={slot!r}"
        )

    def apply(
        self, function: Callable[[gymnasium.Env[Any, Any]], Any], slots: Sequence[int] | None = None
    ) -> list[Any]:
        """What ``function(env)`` returns on the worker, for each of ``slots`` (None: all)."""
        if not self.is_reachable:
            raise TypeError(
                "the envs of a backend object cannot be called one by one: make the ClusterEnv "
                "from a Gymnasium id or from callables"
            )
        if slots is None:
            return list(self.call("apply", function, None))
        # Each time anew, because a replaced worker's envs have forgotten their slots.
        self.set_attr("slot", list(range(self.num_envs)))
        values = self.call("apply", function, tuple(slots))
        return [values[slot] for slot in slots]


class ReachableEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Knows its slot, so that a call to all envs can be meant for some of them."""

    slot: int | None = None

    def apply(
        self, function: Callable[[gymnasium.Env[Any, Any]], Any], slots: Sequence[int] | None
    ) -> Any:
        """``function(env)``; None where this slot is not meant."""
        if slots is not None and self.slot is None:
            raise RuntimeError("the worker of this env was replaced during the call: call it again")
        return function(self.env) if slots is None or self.slot in slots else None
