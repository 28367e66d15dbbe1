"""Pure functions as a VectorEnv: vmapped over a worker's slots, and jitted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("JaxBackend needs JAX: pip install 'clusterenv[jax]'") from error

from clusterenv.backends.jax_forms import PureEnv, pure_env
from clusterenv.backends.jax_spaces import (
    action_space_of_size,
    check_fits,
    own_space,
    space_like,
)

Step = tuple[Any, Any, Any, Any, dict[str, Any]]
_WORD = 2**32

if "CLUSTERENV_WORKER" in os.environ:
    # The caller waits for the step anyway: another thread in between would only cost time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


class _Carry(NamedTuple):
    """The state of all envs, one row each, on the device."""

    keys: Any
    states: Any
    ages: Any
    """Steps since the reset."""
    over: Any
    """Whether the episode has ended, so that the next step resets it."""


class JaxVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps all envs in one call on the device, and resets when told to.

    Args:
        env: An object with ``reset`` and ``step``, or a pair of these.
        num_envs: How many envs.
        params: The params of gymnax's envs.
        observation_space: That of one env; None for the env's own.
        action_space: That of one env; None for the env's own.
        max_episode_steps: Truncates episodes after this many steps.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        params: Any,
        observation_space: Space[Any] | None,
        action_space: Space[Any] | None,
        max_episode_steps: int | None,
    ) -> None:
        self._source, self.num_envs, self._limit = env, num_envs, max_episode_steps
        self._pure = pure_env(env, params)
        self._choose_spaces(observation_space, action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata: dict[str, Any] = {}
        self.on_device: Any = None
        """The last observations, as JAX arrays."""
        self._mode = AutoresetMode.NEXT_STEP
        self._seeds: list[int] = []
        self._over = np.zeros(num_envs, np.bool_)
        self._carry: _Carry | None = None
        self._flags = jnp.array(False), jnp.array(True)
        self._compile()

    def _choose_spaces(self, observations: Space[Any] | None, actions: Space[Any] | None) -> None:
        env, params, first = self._source, self._pure.params, self._pure.first
        observations = observations or own_space(env, "observation_space", params)
        self.single_observation_space = observations or space_like(first, "the observation")
        actions = actions or own_space(env, "action_space", params) or action_space_of_size(env)
        if actions is None:
            raise ValueError(
                f"{self._pure.name} does not say which actions it takes: pass JaxBackend("
                "action_space=…), for instance gymnasium.spaces.Discrete(2)"
            )
        self.single_action_space = actions
        check_fits(self.single_observation_space, first, "the observation that reset returns")
        action = create_empty_array(actions, 1, np.zeros)
        after = self._pure.check_step(jax.tree.map(lambda rows: rows[0], action))
        check_fits(self.single_observation_space, after, "the observation that step returns")

    def _compile(self) -> None:
        """Compile now, while there is time: some envs take minutes."""
        step_one = partial(_step_one, self._pure, self._limit)
        reset_one = partial(_reset_one, self._pure.reset)
        self._reset_all = jax.jit(partial(_reset_all, reset_one))
        self._reset_some = jax.jit(partial(_reset_some, reset_one))
        self._step = jax.jit(partial(_step_all, step_one, reset_one))
        carry, _ = self._reset_all(_keys(range(self.num_envs)))
        actions = create_empty_array(self.single_action_space, self.num_envs, np.zeros)
        jax.block_until_ready(self._step(carry, actions, self._flags[True]))

    def choose_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Reset as ``mode`` says from now on."""
        self._mode, self.metadata["autoreset_mode"] = mode, mode

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``."""
        mask = None if options is None else options.get("reset_mask")
        keys = self._keys_for(seed)
        if mask is None or self._carry is None:
            self._carry, self.on_device = self._reset_all(keys)
            self._over = np.zeros(self.num_envs, np.bool_)
        else:
            carry = self._carry._replace(keys=keys)
            self._carry, self.on_device = self._reset_some(carry, self.on_device, mask)
            self._over = self._over & ~mask
        return _to_host(self.on_device), {}

    def _keys_for(self, seed: int | Sequence[int | None] | None) -> Any:
        """The keys of all rows; rows without a seed continue with theirs."""
        seeds: list[int | None] = [None] * self.num_envs
        if isinstance(seed, int):
            seeds = list(range(seed, seed + self.num_envs))
        elif seed is not None:
            seeds = list(seed)
        if self._carry is not None and all(one is None for one in seeds):
            return self._carry.keys
        fresh = np.random.SeedSequence().generate_state(self.num_envs).tolist()
        known = self._seeds or fresh
        chosen = [old if new is None else new for old, new in zip(known, seeds, strict=True)]
        self._seeds, keys = chosen, _keys(chosen)
        if self._carry is None:
            return keys
        is_seeded = np.array([one is not None for one in seeds])
        return _select(is_seeded, keys, self._carry.keys)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the envs."""
        return tuple(self._seeds)

    def step(self, actions: Any) -> Step:
        """Step all envs; what happens at an episode's end depends on the autoreset mode."""
        if self._mode is AutoresetMode.DISABLED and self._over.any():
            raise AssertionError(
                f"the episodes of rows {np.flatnonzero(self._over).tolist()} are over and "
                "autoreset_mode is DISABLED: reset them first with "
                "reset(options={'reset_mask': terminated | truncated})"
            )
        return self._advance(actions, self._mode is AutoresetMode.SAME_STEP)

    def step_and_reset(self, actions: Any) -> Step:
        """Step all envs; in any autoreset mode, the end of an episode resets at once."""
        return self._advance(actions, at_once=True)

    def _advance(self, actions: Any, at_once: bool) -> Step:
        was_over = self._over
        self._carry, made = self._step(self._carry, actions, self._flags[at_once])
        self.on_device = made.observations
        rows = (made.observations, made.rewards, made.terminated, made.truncated, made.infos)
        observations, rewards, terminated, truncated, said = _to_host(rows)
        infos = _masked(said, ~was_over) if was_over.any() else said
        ended = terminated | truncated
        if at_once and ended.any():
            infos = {**_with_final_infos(infos, ended), **_final_observations(made.last, ended)}
        self._over = ended & (not at_once)
        return observations, rewards, terminated, truncated, infos

    def __getattr__(self, name: str) -> Any:
        """Any other attribute of the env."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._source, name)


# On the device.


class _Made(NamedTuple):
    """The results of a step of all envs."""

    observations: Any
    rewards: Any
    terminated: Any
    truncated: Any
    infos: Any
    last: Any
    """The observations before any reset."""


def _reset_one(reset: Callable[[Any], Any], key: Any) -> tuple[Any, Any, Any]:
    key, own = jax.random.split(key)
    observation, state = reset(own)
    return key, observation, state


def _step_one(
    pure: PureEnv, limit: int | None, key: Any, state: Any, age: Any, action: Any
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    key, own = jax.random.split(key)
    observation, state, reward, terminated, truncated, infos = pure.step(own, state, action)
    if limit is not None:
        truncated = truncated | (~terminated & (age + 1 >= limit))
    return key, observation, state, reward, terminated, truncated, infos


def _reset_all(reset_one: Callable[[Any], Any], keys: Any) -> tuple[_Carry, Any]:
    keys, observations, states = jax.vmap(reset_one)(keys)
    ages = jnp.zeros(len(keys), jnp.int32)
    return _Carry(keys, states, ages, jnp.zeros(len(keys), jnp.bool_)), observations


def _reset_some(
    reset_one: Callable[[Any], Any], carry: _Carry, observations: Any, mask: Any
) -> tuple[_Carry, Any]:
    """Reset the envs of the mask; the others stay as they are."""
    anew, firsts = _reset_all(reset_one, carry.keys)
    return _select(mask, anew, carry), _select(mask, firsts, observations)


def _step_all(
    step_one: Callable[..., Any],
    reset_one: Callable[[Any], Any],
    carry: _Carry,
    actions: Any,
    at_once: Any,
) -> tuple[_Carry, _Made]:
    """Step all envs, except those whose episode is over, which are reset instead."""
    over = carry.over
    stepped = jax.vmap(step_one)(carry.keys, carry.states, carry.ages, actions)
    keys, observations, states, rewards, terminated, truncated, infos = stepped
    terminated, truncated = terminated & ~over, truncated & ~over
    rewards = jnp.where(over, 0, rewards).astype(rewards.dtype)
    ended = terminated | truncated
    keys = _select(over, carry.keys, keys)
    after = _Carry(keys, states, carry.ages + 1, ended & ~at_once)
    # A branch that is not taken costs nothing, while a reset may cost more than many steps.
    to_reset = over | (ended & at_once)
    after, firsts = jax.lax.cond(
        to_reset.any(),
        lambda: _reset_those(reset_one, after, observations, to_reset),
        lambda: (after, observations),
    )
    return after, _Made(firsts, rewards, terminated, truncated, infos, observations)


def _reset_those(
    reset_one: Callable[[Any], Any], carry: _Carry, observations: Any, mask: Any
) -> tuple[_Carry, Any]:
    anew, firsts = _reset_some(reset_one, carry, observations, mask)
    return anew._replace(over=carry.over & ~mask), firsts


def _select(mask: Any, chosen: Any, others: Any) -> Any:
    """Select row by row, in all arrays of a tree."""
    return jax.tree.map(partial(jax.vmap(jax.lax.select), jnp.asarray(mask)), chosen, others)


def _key(low: Any, high: Any) -> Any:
    key = jax.random.PRNGKey(low)
    return jnp.where(high == 0, key, jax.random.fold_in(key, high))


_keys_of_words = jax.jit(jax.vmap(_key))


def _keys(seeds: Sequence[int]) -> Any:
    """A key per seed; for 32-bit seeds that of ``jax.random.PRNGKey``."""
    low = np.array([seed % _WORD for seed in seeds], np.uint32)
    high = np.array([seed // _WORD % _WORD for seed in seeds], np.uint32)
    return _keys_of_words(low, high)


# On the host.


def _to_host(tree: Any) -> Any:
    """As NumPy arrays; those on the CPU are views."""
    is_there = jax.default_backend() == "cpu"
    return jax.tree.map(np.asarray, tree) if is_there else jax.device_get(tree)


def _masked(infos: dict[str, Any], mask: Any) -> dict[str, Any]:
    """Infos that only some rows have, in Gymnasium's form."""
    masks = {f"_{name}": mask for name in infos}
    return {**infos, **masks}


def _with_final_infos(infos: dict[str, Any], ended: Any) -> dict[str, Any]:
    """Make the infos at an episode's end its final info, since a reset came after it."""
    if not infos:
        return {}
    names = [name for name in infos if not (name.startswith("_") and name[1:] in infos)]
    said = {name: infos[name] for name in names}
    going_on = {f"_{name}": infos.get(f"_{name}", True) & ~ended for name in names}
    return {**said, **going_on, "final_info": _masked(said, ended), "_final_info": ended}


def _final_observations(last: Any, ended: Any) -> dict[str, Any]:
    """The true last observations, and zeros in the rows of episodes that go on."""

    def only_finals(rows: Any) -> Any:
        finals = np.zeros_like(rows)
        finals[ended] = rows[ended]
        return finals

    return {"final_obs": jax.tree.map(only_finals, _to_host(last)), "_final_obs": ended}
