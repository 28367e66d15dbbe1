"""Any pure JAX function with its parameters as a policy."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("JaxPolicy needs JAX: pip install 'clusterenv[jax]'") from error

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution, Joint
from clusterenv.distributions.base import ArrayFields
from clusterenv.policies.base import Acted, draw, refuse_parts_at_head
from clusterenv.policies.recurrent import shapes_of
from clusterenv.randomness import SlotRandom


class JaxPolicy:
    """Lets a pure function act on the workers, jitted.

    If the envs are in JAX as well (:class:`clusterenv.JaxBackend`), it acts on their device, and
    observations stay there; otherwise it acts on the CPU.

    Args:
        apply: ``(params, observations)`` → one of :mod:`clusterenv.distributions` with JAX arrays
            in it, or ``(that, value)`` if both come from one pass.
        params: Any pytree with arrays in it: dicts, Flax or Haiku params, Equinox modules. Its
            arrays are the weights; a learner sets :attr:`params` to new ones.
        value: ``(params, observations)`` → one value per row.
        state_shapes: For a recurrent policy, name → shape of one slot's state. ``apply`` and
            ``value`` are then called as ``(params, observations, state)``, with a dict of arrays:
            the state before the step. ``apply`` returns ``(distribution, next state)`` or
            ``(distribution, value, next state)``.
        stays_at_head: Names of parts of the params that acting does not need, such as
            ``("critic",)``: their weights are never sent, and a copy that needs them raises an
            error. Values are then computed at the head, see :func:`clusterenv.with_values`.
    """

    acts_on_device = True

    def __init__(
        self,
        apply: Callable[..., Any],
        params: Any,
        value: Callable[..., Any] | None = None,
        state_shapes: Mapping[str, tuple[int, ...]] | None = None,
        stays_at_head: Sequence[str] = (),
    ) -> None:
        if not callable(apply):
            raise TypeError(
                f"apply={apply!r:.80} is not a function: pass JaxPolicy(apply, params) with "
                "apply(params, observations) → a distribution"
            )
        self._apply, self._value = apply, value
        self._state_shapes = shapes_of(state_shapes)
        self._tree = _Tree(params)
        for part in stays_at_head:
            if not any(_is_part(name, part) for name in self._tree.names):
                tops = sorted({name.partition("/")[0] for name in self._tree.names})
                raise ValueError(
                    f"stays_at_head={part!r}: the params have no weights of that name; their "
                    f"top-level names are {tops}"
                )
        self._stays_at_head, self._is_copy = tuple(stays_at_head), False
        self._set_up()

    def _set_up(self) -> None:
        self._forward = jax.jit(self._evaluate)
        self._device: Any = None
        # On the device; None until they are placed there.
        self._placed: list[Any] | None = None
        self._usual_rows = 0

    @property
    def params(self) -> Any:
        """The parameters as they were given; assign those that the learner has made."""
        return self._tree.params()

    @params.setter
    def params(self, params: Any) -> None:
        """Take these from now on; ValueError if they have another form."""
        tree = _Tree(params)
        self._tree.check_like(tree)
        self._tree, self._placed = tree, None

    # Acting.

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """Actions, their log-probabilities, and values if there are any."""
        rows = _rows_of(observations)
        padded = self._padded(rows)
        if padded != rows:
            observations, state = _pad(observations, padded), _pad(state, padded)
        if self._state_shapes is not None and state is None:
            shapes = self._state_shapes.items()
            state = {name: np.zeros((padded, *shape), np.float32) for name, shape in shapes}
        weights = self._weights_beside(observations)
        made = _to_host(self._forward(weights, observations, state), self._device)
        distribution, value, next_state = made if padded == rows else _cut(made, rows)
        actions, log_prob = draw(distribution, rng)
        outputs = {"log_prob": log_prob}
        if value is not None:
            outputs["value"] = value.reshape(len(log_prob))
        if self._is_copy and self._stays_at_head:
            refuse_parts_at_head(outputs, self._stays_at_head)
        return Acted(actions, distribution, outputs, next_state)

    def _padded(self, rows: int) -> int:
        """How many rows to compute: every new number of rows would be compiled anew."""
        if not self._usual_rows:
            self._usual_rows = rows
        return rows if rows == self._usual_rows else 1 << (rows - 1).bit_length()

    def _weights_beside(self, observations: Any) -> list[Any]:
        """The arrays of the params, on the device of the observations."""
        leaf = jax.tree.leaves(observations)[0]
        device = leaf.device if isinstance(leaf, jax.Array) else self._device or _cpu()
        if self._placed is None or device != self._device:
            self._device = device
            self._placed = jax.device_put(self._tree.arrays, device)
        return self._placed

    def _evaluate(self, weights: list[Any], observations: Any, state: Any) -> tuple[Any, Any, Any]:
        """(distribution, value or None, next state or None); traced."""
        arguments: tuple[Any, ...] = (self._tree.params(weights), observations)
        if self._state_shapes is not None:
            arguments += (state,)
        found = self._apply(*arguments)
        parts = list(found) if isinstance(found, tuple) else [found]
        next_state = parts.pop() if self._state_shapes is not None else None
        value = parts[1] if len(parts) > 1 else None
        if self._value is not None:
            value = self._value(*arguments)
        return _as_pytree(parts[0]), value, next_state

    # Weights.

    def weights(self) -> dict[str, Array]:
        """The arrays of the params by name, such as ``layers/0/bias``."""
        named = zip(self._tree.names, jax.device_get(self._tree.arrays), strict=True)
        return {name: _plain(array) for name, array in named if self._travels(name)}

    def _travels(self, name: str) -> bool:
        return not any(_is_part(name, part) for part in self._stays_at_head)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take these weights, by name."""
        tree = self._tree
        own = {name for name in tree.names if self._travels(name)}
        if own != weights.keys():
            raise ValueError(
                "these weights belong to another policy: unexpected "
                f"{sorted(weights.keys() - own)}, missing {sorted(own - weights.keys())}"
            )
        self._tree = tree.with_arrays(
            [
                jnp.array(weights[name], array.dtype) if name in own else array
                for name, array in zip(tree.names, tree.arrays, strict=True)
            ]
        )
        self._placed = None

    def __getstate__(self) -> dict[str, Any]:
        named = zip(self._tree.names, self._tree.arrays, strict=True)
        arrays = [
            jax.device_get(array) if self._travels(name) else _LeftOut(array.shape, array.dtype)
            for name, array in named
        ]
        state = {**self.__dict__, "_tree": self._tree.params(arrays)}
        return {key: value for key, value in state.items() if key not in _MADE_HERE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "CLUSTERENV_WORKER" in os.environ:
            _settle_in_worker()
        tree = _Tree(jax.tree.map(_LeftOut.fill, state["_tree"]))
        self.__dict__.update(state, _tree=tree, _is_copy=True)
        self._set_up()


@dataclasses.dataclass(frozen=True)
class _LeftOut:
    """Stands for an array that stays at the head, on the way to a worker."""

    shape: tuple[int, ...]
    dtype: Any

    @staticmethod
    def fill(leaf: Any) -> Any:
        """NaN in place of what was left out: whoever uses it notices."""
        if not isinstance(leaf, _LeftOut):
            return leaf
        is_real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.full(leaf.shape, jnp.nan if is_real else 0, leaf.dtype)


_MADE_HERE = ("_forward", "_device", "_placed", "_usual_rows")


class _Tree:
    """A pytree as its arrays and the rest; anything else, such as a function, is constant."""

    def __init__(self, params: Any) -> None:
        found, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._leaves = [None if _is_weight(leaf) else leaf for _, leaf in found]
        self._places = [place for place, (_, leaf) in enumerate(found) if _is_weight(leaf)]
        self.names = ["/".join(map(_key_name, found[place][0])) for place in self._places]
        self.arrays = [_strong(found[place][1], found[place][0]) for place in self._places]
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"two weights are called {twice!r}: rename one of them")
        if not self.arrays:
            raise ValueError(f"params={params!r:.80} has no arrays: there is nothing to publish")

    def params(self, arrays: Sequence[Any] | None = None) -> Any:
        """The pytree, with these arrays instead of its own."""
        leaves = list(self._leaves)
        for place, array in zip(
            self._places, self.arrays if arrays is None else arrays, strict=True
        ):
            leaves[place] = array
        return jax.tree.unflatten(self._structure, leaves)

    def with_arrays(self, arrays: Sequence[Any]) -> _Tree:
        """The same tree with other arrays."""
        return _Tree(self.params(arrays))

    def check_like(self, other: _Tree) -> None:
        """ValueError if ``other`` has arrays of other names, shapes or dtypes."""
        mine, others = self._kinds(), other._kinds()
        if mine != others:
            different = sorted(mine.items() ^ others.items(), key=str)[:4]
            raise ValueError(
                f"params differ from those the policy was created with in {different}: create a "
                "new JaxPolicy for them"
            )

    def _kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        pairs = zip(self.names, self.arrays, strict=True)
        return {name: (str(array.dtype), array.shape) for name, array in pairs}


def _is_weight(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _strong(leaf: Any, path: Any) -> Any:
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(
            f"params{jax.tree_util.keystr(path)} is a random key: keep it at the learner, actions "
            "are drawn from (seed, slot, step)"
        )
    return jnp.asarray(array, array.dtype)


def _key_name(key: Any) -> str:
    """One step of a path, without the brackets."""
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def _is_part(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}/")


def _plain(array: Array) -> Array:
    """Convert bfloat16, which NumPy does not have."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _settle_in_worker() -> None:
    # The caller waits for the result anyway: another thread in between would only cost time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if "clusterenv.backends.jax" not in sys.modules and not jax.config.jax_platforms:
        # The envs are not in JAX, and each worker would take most of a GPU's memory for nothing.
        jax.config.update("jax_platforms", "cpu")


def _to_host(tree: Any, device: Any) -> Any:
    """As NumPy arrays; those on the CPU are views."""
    return jax.tree.map(np.asarray, tree) if device.platform == "cpu" else jax.device_get(tree)


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS says otherwise
        return jax.local_devices()[0]


# Distributions.


def _as_pytree(found: Any) -> Any:
    """Let JAX look into one of our distributions; TypeError if it is not one."""
    if isinstance(found, Joint):
        parts = found.parts
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            _as_pytree(part)
        _register(Joint, ["parts"], [])
    elif isinstance(found, ArrayFields):
        fields = dataclasses.fields(found)  # type: ignore[arg-type]
        # Bounds may be arrays as well.
        arrays = [one.name for one in fields if one.name in found.ARRAYS or "rray" in str(one.type)]
        others = [one.name for one in fields if one.name not in arrays]
        _register(type(found), arrays, others)
    else:
        raise TypeError(
            f"apply returned {type(found).__qualname__}, expected a distribution: return one of "
            "clusterenv.distributions, e.g. Categorical(logits) or DiagonalGaussian(mean, log_std)"
        )
    return found


def _register(kind: type, arrays: list[str], constants: list[str]) -> None:
    if kind not in _REGISTERED:
        jax.tree_util.register_dataclass(kind, arrays, constants)
        _REGISTERED.add(kind)


_REGISTERED: set[type] = set()


# Rows.


def _rows_of(observations: Any) -> int:
    return len(jax.tree.leaves(observations)[0])


def _pad(tree: Any, rows: int) -> Any:
    """Rows of zeros at the end."""

    def padded(array: Any) -> Array:
        filled = np.zeros((rows, *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        return filled

    return jax.tree.map(padded, tree)


def _cut(made: tuple[Any, Any, Any], rows: int) -> tuple[Distribution, Any, Any]:
    """The first rows of everything."""
    distribution, value, state = made
    arrays = {name: array[:rows] for name, array in distribution.arrays().items()}
    value, state = jax.tree.map(lambda array: array[:rows], (value, state))
    return distribution.with_arrays(arrays), value, state
