"""ClusterEnv as a vector env of Tianshou. The only file that imports tianshou."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

try:
    from tianshou.env import BaseVectorEnv
except ImportError as error:
    raise ImportError("TianshouVectorEnv needs Tianshou: pip install tianshou") from error

from clusterenv.adapters.base import EnvsBySlot

Ids = int | Sequence[int] | np.ndarray[Any, Any] | None
Rows = np.ndarray[Any, Any]
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class TianshouVectorEnv(BaseVectorEnv):  # type: ignore[misc]
    """A Tianshou vector env whose environments run in ClusterEnv's workers.

    It takes the arguments of :class:`clusterenv.ClusterEnv` and returns what Tianshou's own
    ``DummyVectorEnv`` returns for the same seeds and actions; rewards are always float64. Where a
    worker was lost, the info has ``env_lost``, and the episode counts as truncated.

    An env is reset within the step that ends its episode. When a collector then calls ``reset``
    for that env, it gets what is there already; only a ``reset`` with a seed or options resets the
    env again. Envs that a step leaves out pause on their workers.

    It is for synchronous collectors: ``wait_num`` and ``timeout`` are refused.

    Args:
        env: A Gymnasium id, a callable that makes one env, a list of such callables, or a backend
            object, whose envs are always stepped together.
        num_envs: How many envs.
        num_workers: How many workers.
        **kwargs: Passed to :class:`clusterenv.ClusterEnv`.

    Attributes:
        envs: The ClusterEnv.

    Example:
        >>> envs = TianshouVectorEnv("CartPole-v1", num_envs=64)  # doctest: +SKIP
        >>> collector = Collector(policy, envs)  # doctest: +SKIP
        >>> collector.collect(n_step=6400, reset_before_collect=True)  # doctest: +SKIP
    """

    def __init__(
        self, env: Any, num_envs: int | None = None, num_workers: int | None = None, **kwargs: Any
    ) -> None:
        # BaseVectorEnv.__init__ would make a worker of its own for each env.
        for name in ("wait_num", "timeout"):
            if name in kwargs:
                raise TypeError(f"{name} is for asynchronous vector envs, and this is none")
        if not hasattr(env, "for_slots"):
            kwargs["wrappers"] = (*_as_tuple(kwargs.get("wrappers")), _pausable())
        self.envs = EnvsBySlot(env, num_envs, num_workers, **kwargs)
        self.is_async, self.is_closed = False, False
        self.env_num = self.wait_num = self.envs.num_envs
        self.timeout, self.ready_id = None, list(range(self.env_num))
        self.waiting_id: list[int] = []
        self._check_spaces()
        self._action_spaces = [deepcopy(self.envs.single_action_space) for _ in self.ready_id]
        # What the reset within a step gave, until somebody asks for it.
        self._begun: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._paused: list[int] = []

    def _check_spaces(self) -> None:
        wanted = {
            "observations": (self.envs.single_observation_space, (*_ARRAY_SPACES, spaces.Dict)),
            "actions": (self.envs.single_action_space, _ARRAY_SPACES),
        }
        for name, (space, kinds) in wanted.items():
            if not isinstance(space, kinds):
                self.close()
                raise TypeError(
                    f"{name} must be one of {', '.join(kind.__name__ for kind in kinds)} for "
                    f"Tianshou, got {space}: wrap the env"
                )

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[Rows, Rows]:
        """The first observations and infos of these envs (None: of all).

        ``seed`` is that of each of them, as in Tianshou; ``options`` are the envs' own.
        """
        self._assert_is_not_closed()
        slots = self._slots(env_id)
        if kwargs or any(slot not in self._begun for slot in slots):
            self._reset(slots, **kwargs)
        observations, infos = zip(*[self._begun.pop(slot) for slot in slots], strict=True)
        is_array = isinstance(self.envs.single_observation_space, _ARRAY_SPACES)
        return np.stack(observations) if is_array else _objects(observations), _objects(infos)

    def _reset(
        self,
        slots: list[int],
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Reset these slots; without arguments, only those that no step has reset already."""
        if seed is None and options is None:
            slots = [slot for slot in slots if slot not in self._begun]
        if not slots:
            return
        if len(slots) < self.env_num:
            mask = np.isin(np.arange(self.env_num), slots)
            options = {**(options or {}), "reset_mask": mask}
        # One seed for all of them, as Tianshou's workers have it; a list is of all envs.
        seeds = seed if isinstance(seed, Sequence) else [seed] * self.env_num
        observations, found = self.envs.reset(seed=seeds, options=options)
        infos: dict[Any, dict[str, Any]] = found
        rows = self._rows(observations)
        self._begun.update({slot: (rows[slot], infos.get(slot, {})) for slot in slots})

    def step(self, action: Any, id: Ids = None) -> tuple[Rows, Rows, Rows, Rows, Rows]:
        """Step these envs (None: all), each with its action."""
        self._assert_is_not_closed()
        slots = self._slots(id)
        if action is None or len(action) != len(slots):
            count = "no" if action is None else len(action)
            raise ValueError(f"got {count} actions for {len(slots)} envs: pass one for each")
        self._pause_others(slots)
        actions = np.repeat(np.asarray(action)[:1], self.env_num, axis=0)
        actions[slots] = action
        observations, rewards, terminated, truncated, found = self.envs.step(actions)
        infos: dict[Any, dict[str, Any]] = found
        rows = self._rows(observations)
        for slot in slots:
            self._begun.pop(slot, None)
            last = infos.get(slot, {})
            if terminated[slot] or truncated[slot]:
                rows[slot], last = self._end_of_episode(slot, copy(rows[slot]), last)
            infos[slot] = {**last, "env_id": slot}
        by_slot = (rows, rewards, terminated, truncated)
        return *(array[slots] for array in by_slot), _objects([infos[slot] for slot in slots])  # type: ignore[return-value]

    def _rows(self, observations: Any) -> Rows:
        """An observation per slot, as Tianshou has them: an array, or an object array of dicts."""
        if isinstance(observations, np.ndarray):
            return observations
        return _objects(iterate(self.envs.observation_space, observations))

    def _end_of_episode(self, slot: int, first: Any, info: dict[str, Any]) -> Any:
        """The last observation and info of an episode; those that begin the next are kept."""
        last = info.pop("final_info", {})
        observation = info.pop("final_obs")
        if info.pop("env_lost", False):
            last["env_lost"] = True
        self._begun[slot] = first, info
        return observation, last

    def _pause_others(self, slots: list[int]) -> None:
        paused = sorted(set(range(self.env_num)) - set(slots))
        if paused == self._paused:
            return
        if not self.envs.is_reachable:
            raise TypeError(
                f"a backend object steps all of its {self.env_num} envs together, but only "
                f"{slots} were to be stepped: collect with n_step, or pass a Gymnasium id"
            )
        self.envs.set_attr("is_paused", [slot in paused for slot in range(self.env_num)])
        self._paused = paused

    def seed(self, seed: int | list[int] | None = None) -> list[list[int] | None]:
        """Reset all envs, the *i*-th with ``seed + i`` or ``seed[i]``, and seed action spaces."""
        self._assert_is_not_closed()
        seeds: Any = [seed] * self.env_num if seed is None else seed
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + slot for slot in range(self.env_num)]
        self.envs.reset(seed=seeds)
        self._begun.clear()
        for space, one in zip(self._action_spaces, seeds, strict=True):
            space.seed(one)
        return [[one] for one in seeds]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """An attribute of these envs (None: of all), inside all wrappers."""
        self._assert_is_not_closed()
        slots = self._slots(id)
        if key == "action_space":
            return [self._action_spaces[slot] for slot in slots]
        if key == "observation_space":
            return [self.envs.single_observation_space for _ in slots]
        return self.envs.apply(lambda env: getattr(env.unwrapped, key), slots)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set an attribute of these envs (None: of all), inside all wrappers."""
        self._assert_is_not_closed()
        self.envs.apply(lambda env: setattr(env.unwrapped, key, value), self._slots(id))

    def render(self, **kwargs: Any) -> list[Any]:
        """What each env renders, if its ``render_mode`` is ``rgb_array``."""
        self._assert_is_not_closed()
        if kwargs:
            raise TypeError(f"render takes no arguments here, got {sorted(kwargs)}")
        return list(self.envs.render() or ())

    def close(self) -> None:
        """Close the envs and end the workers."""
        self.envs.close()
        self.is_closed = True

    def _slots(self, ids: Ids) -> list[int]:
        if ids is None:
            return list(range(self.env_num))
        slots = [range(self.env_num)[int(one)] for one in np.atleast_1d(np.asarray(ids))]
        if not slots or len(set(slots)) < len(slots):
            raise ValueError(f"ids must name one or more envs, each once; got {ids!r}")
        return slots


def _pausable() -> Any:
    """A wrapper whose env can be left out of a step."""

    # Made here, so that its code travels: workers need no Tianshou, which this module imports.
    class Pausable(gymnasium.Wrapper[Any, Any, Any, Any]):
        is_paused = False
        last_observation: Any = None

        def reset(self, **kwargs: Any) -> Any:
            self.last_observation, info = self.env.reset(**kwargs)
            return self.last_observation, info

        def step(self, action: Any) -> Any:
            if self.is_paused:
                if self.last_observation is None:  # never reset; nobody looks at it
                    self.last_observation = deepcopy(self.observation_space).sample()
                return self.last_observation, 0.0, False, False, {}
            result = self.env.step(action)
            self.last_observation = result[0]
            return result

    return Pausable


def _as_tuple(wrappers: Any) -> tuple[Any, ...]:
    return (wrappers,) if callable(wrappers) else tuple(wrappers or ())


def _objects(rows: Iterable[Any]) -> Rows:
    listed = list(rows)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array
