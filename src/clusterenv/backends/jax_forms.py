"""Unifies gymnax's and Brax' forms of an env: two pure functions, traced and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

_RESET = "reset(key) → (observation, state), or → a state with .obs, .reward and .done"
_STEP = "step(key, state, action) → (observation, state, reward, done, info)"
_STEP_OF_STATE = "step(state, action) → state"
_TRUNCATION = ("truncation", "truncated")


@dataclass(frozen=True)
class PureEnv:
    """One env as two functions, which are traced and not computed."""

    name: str
    params: Any
    reset: Callable[[Any], tuple[Any, Any]]
    """key → (observation, state)."""
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any, Any]]
    """key, state, action → (observation, state, reward, terminated, truncated, infos)."""
    first: Any
    """Shapes and dtypes of a first observation."""
    state: Any
    """Those of a state."""

    def check_step(self, action: Any) -> Any:
        """Shapes and dtypes of the next observation; TypeError if a step is malformed."""
        key = jax.random.PRNGKey(0)
        observation, state, reward, *_, infos = jax.eval_shape(self.step, key, self.state, action)
        if reward.shape != ():
            raise TypeError(
                f"{self.name}: step returns a reward of shape {reward.shape}, expected one number "
                "per env: the functions are those of a single env, and vmapped by JaxBackend"
            )
        if not isinstance(infos, dict):
            raise TypeError(
                f"{self.name}: step returns an info of type {type(infos).__name__}, expected a "
                "dict of arrays"
            )
        _check_states(self.name, self.state, state)
        return observation


def pure_env(env: Any, params: Any) -> PureEnv:
    """A PureEnv from an object with ``reset`` and ``step``, or from a pair of these."""
    name = "(reset, step)" if isinstance(env, tuple) else getattr(env, "name", type(env).__name__)
    reset, step, params = _functions_of(env, params)
    _check_call(name, reset, ("key",), _RESET)
    made = jax.eval_shape(reset, jax.random.PRNGKey(0))
    if isinstance(made, tuple) and len(made) == 2:
        _check_call(name, step, ("key", "state", "action"), _STEP)
        step = partial(_step_of_gymnax, name, step)
    elif all(hasattr(made, part) for part in ("obs", "reward", "done")):
        _refuse_own_resets(name, made)
        _check_call(name, step, ("state", "action"), _STEP_OF_STATE)
        reset, step = partial(_reset_of_brax, reset), partial(_step_of_brax, name, step)
    else:
        raise TypeError(f"{name}: reset(key) returned {_in_words(made)}, expected {_RESET}")
    reset, step = partial(_strong_reset, reset), partial(_strong_step, step)
    first, state = jax.eval_shape(reset, jax.random.PRNGKey(0))
    return PureEnv(str(name), params, reset, step, first, state)


def _functions_of(env: Any, params: Any) -> tuple[Any, Any, Any]:
    """Reset, step, and the params that they were given."""
    if isinstance(env, tuple):
        reset, step = env
    elif hasattr(type(env), "step_env"):
        # gymnax's own `step` resets, which loses the last observation.
        reset, step = env.reset_env, env.step_env
        params = env.default_params if params is None else params
    elif hasattr(env, "step_env"):
        raise TypeError(
            f"{type(env).__name__} wraps an env of gymnax whose step resets by itself, so that the "
            "last observation is lost: pass the env itself, or a pair (reset, step) around its "
            "reset_env and step_env"
        )
    else:
        reset, step = env.reset, env.step
    if params is None:
        return reset, step, None
    return _with_last(reset, params), _with_last(step, params), params


def _with_last(function: Callable[..., Any], params: Any) -> Callable[..., Any]:
    """The function with ``params`` as its last argument."""

    def call(*arguments: Any) -> Any:
        return function(*arguments, params)

    call.__signature__ = _without_last(function)  # type: ignore[attr-defined]
    return call


def _without_last(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    return signature.replace(parameters=list(signature.parameters.values())[:-1])


def _check_call(
    name: str, function: Callable[..., Any], arguments: tuple[str, ...], form: str
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        own = form.partition("(")[0]
        call = f"{own}({', '.join(arguments)})"
        raise TypeError(
            f"{name}: {own}{signature} cannot be called as {call}: JaxBackend takes {form}"
        ) from error


# gymnax: the observation beside the state.


def _step_of_gymnax(
    name: str, step: Callable[..., Any], key: Any, state: Any, action: Any
) -> tuple[Any, Any, Any, Any, Any, Any]:
    made = step(key, state, action)
    if not isinstance(made, tuple) or len(made) != 5:
        raise TypeError(f"{name}: step returned {_in_words(made)}, expected {_STEP}")
    observation, state, reward, done, infos = made
    return observation, state, reward, *_ends(name, done, infos), infos


# Brax: everything in the state.


def _reset_of_brax(reset: Callable[[Any], Any], key: Any) -> tuple[Any, Any]:
    state = reset(key)
    return state.obs, state


def _step_of_brax(
    name: str, step: Callable[..., Any], key: Any, state: Any, action: Any
) -> tuple[Any, Any, Any, Any, Any, Any]:
    made = step(state, action)
    if not hasattr(made, "obs"):
        raise TypeError(f"{name}: step returned {_in_words(made)}, expected {_STEP_OF_STATE}")
    ends = _ends(name, made.done, getattr(made, "info", {}))
    return made.obs, made, made.reward, *ends, dict(getattr(made, "metrics", {}))


def _refuse_own_resets(name: str, state: Any) -> None:
    infos = getattr(state, "info", {})
    if isinstance(infos, dict) and "first_obs" in infos:
        raise TypeError(
            f"{name} resets by itself (Brax' AutoResetWrapper), so that the last observation is "
            "lost: make it with auto_reset=False"
        )


def _ends(name: str, done: Any, infos: Any) -> tuple[Any, Any]:
    """(terminated, truncated)."""
    if jnp.shape(done) != ():
        raise TypeError(
            f"{name}: step returns a done of shape {jnp.shape(done)}, expected one flag per env"
        )
    done = jnp.asarray(done).astype(jnp.bool_)
    said = [infos[key] for key in _TRUNCATION if isinstance(infos, dict) and key in infos]
    truncated = jnp.asarray(said[0] if said else False).astype(jnp.bool_)
    return done & ~truncated, truncated


# What both have in common.


def _strong_reset(reset: Callable[[Any], Any], key: Any) -> tuple[Any, Any]:
    observation, state = reset(key)
    return _strong(observation), _strong(state)


def _strong_step(
    step: Callable[..., Any], key: Any, state: Any, action: Any
) -> tuple[Any, Any, Any, Any, Any, Any]:
    observation, state, reward, terminated, truncated, infos = step(key, state, action)
    reward = jnp.asarray(reward)
    if not jnp.issubdtype(reward.dtype, jnp.floating):
        reward = reward.astype(jnp.float32)
    return _strong(observation), _strong(state), _strong(reward), terminated, truncated, infos


def _strong(tree: Any) -> Any:
    """Give arrays a dtype of their own: weak ones, from Python's numbers, would compile twice."""

    def strong(leaf: Any) -> Any:
        array = jnp.asarray(leaf)
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.extended)
        return array if is_key else jnp.asarray(array, array.dtype)

    return jax.tree.map(strong, tree)


def _check_states(name: str, first: Any, later: Any) -> None:
    """Check that reset and step return the same kind of state, since one may follow the other."""
    if jax.tree.structure(first) != jax.tree.structure(later):
        raise TypeError(
            f"{name}: step returns a state of another structure than reset: "
            f"{_in_words(later)} and {_in_words(first)}"
        )
    paths = jax.tree_util.tree_leaves_with_path(first)
    for (path, one), other in zip(paths, jax.tree.leaves(later), strict=True):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            place = jax.tree_util.keystr(path)
            raise TypeError(
                f"{name}: state{place} is {one.dtype} of shape {one.shape} after reset, but "
                f"{other.dtype} of shape {other.shape} after step: make the two equal"
            )


def _in_words(made: Any) -> str:
    """What a function returned, without the arrays."""
    if isinstance(made, tuple) and not hasattr(made, "_fields"):
        return f"a tuple of {len(made)}"
    return f"a {type(made).__qualname__} with {len(jax.tree.leaves(made))} arrays"
