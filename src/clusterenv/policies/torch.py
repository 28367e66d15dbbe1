"""Any ``torch.nn.Module`` as a policy."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

try:
    import torch
    from torch import distributions as td
    from torch import nn
except ImportError as error:
    raise ImportError("this needs PyTorch: pip install 'clusterenv[torch]'") from error

from clusterenv.arrays import Array
from clusterenv.policies import perceptron
from clusterenv.policies.base import Acted, draw, refuse_parts_at_head
from clusterenv.policies.recurrent import shapes_of
from clusterenv.policies.torch_distributions import to_array, to_plain_distribution
from clusterenv.randomness import SlotRandom

# Per layer. With more weights, torch is as fast.
_FEW_WEIGHTS = 2**15


class TorchPolicy:
    """Lets a module act on the workers.

    Args:
        module: Its parameters and buffers are the weights; keep exploration scalars and
            normalisation statistics in buffers, and they are published too. Modules on a GPU,
            compiled ones and those inside DDP or DataParallel are unwrapped.
        distribution: ``(module, observations)`` → a ``torch.distributions`` object, or one of
            :mod:`clusterenv.distributions` holding tensors, which is cheaper, or
            ``(either, value)`` if both come from one pass. By default the module itself.
        value: ``(module, observations)`` → one value per row.
        state_shapes: For a recurrent module, name → shape of one slot's state. The module is
            then called as ``forward(observations, state)``, and ``distribution`` and ``value`` as
            ``(module, observations, state)``, with a dict of tensors: the state before the step.
            ``distribution`` returns ``(distribution, next state)`` or
            ``(distribution, value, next state)``.
        stays_at_head: Names of submodules (or parameters) that acting does not need, such as
            ``("critic",)``: their weights are never sent, and a copy that needs them raises an
            error. Values are then computed at the head, see :func:`clusterenv.with_values`.
        device: Where the copies in worker processes act, such as ``"cuda"``. In ``"cuda:{worker}"``
            the worker's number on its host is filled in, modulo the number of GPUs there. At the
            head, the policy runs on the module's own device.
    """

    def __init__(
        self,
        module: nn.Module,
        distribution: Callable[..., Any] | None = None,
        value: Callable[..., Any] | None = None,
        state_shapes: Mapping[str, tuple[int, ...]] | None = None,
        stays_at_head: Sequence[str] = (),
        device: str = "cpu",
    ) -> None:
        names = unwrap(module).state_dict()
        for part in stays_at_head:
            if not any(_is_part(name, part) for name in names):
                raise ValueError(
                    f"stays_at_head={part!r}: the module has no weights of that name; its "
                    f"top-level names are {sorted({name.partition('.')[0] for name in names})}"
                )
        self._stays_at_head, self._device = tuple(stays_at_head), check_device(device)
        self.module = module
        # It moves to another device with the rest; a lookup at each act costs as much as a layer.
        self._a_parameter = _a_parameter(module)
        self._distribution = distribution or _call_module
        self._value = value
        self._state_shapes = shapes_of(state_shapes)
        self._is_copy = False
        self._assert_signatures_fit()

    def _assert_signatures_fit(self) -> None:
        arguments = ["observations"] + ["state"] * (self._state_shapes is not None)
        if self._distribution is _call_module:
            module = unwrap(self.module)
            _assert_has_forward(module)
            _assert_takes(module.forward, "the module's forward", arguments)
        else:
            _assert_takes(self._distribution, "distribution", ["module", *arguments])
        if self._value is not None:
            _assert_takes(self._value, "value", ["module", *arguments])

    def act(self, observations: Any, state: Any, rng: SlotRandom | None) -> Acted:
        """Actions, their log-probabilities, and values if there are any."""
        with torch.inference_mode():
            found, value, next_state = self._evaluate(observations, state)
            distribution = to_plain_distribution(found)
            actions, log_prob = draw(distribution, rng)
            outputs = {"log_prob": log_prob}
            if value is not None:
                outputs["value"] = to_array(value.reshape(len(log_prob)))
            if self._is_copy and self._stays_at_head:
                refuse_parts_at_head(outputs, self._stays_at_head)
            return Acted(actions, distribution, outputs, _to_arrays(next_state))

    def _evaluate(self, observations: Any, state: Any) -> tuple[Any, Any, Any]:
        """(distribution, value or None, next state or None)."""
        device = self._a_parameter.device
        tensors = _to_tensors(observations, device)
        arguments: tuple[Any, ...] = (self.module, tensors)
        if self._state_shapes is not None:
            arguments += (self._state_tensors(state, tensors, device),)
        found = self._distribution(*arguments)
        parts = list(found) if isinstance(found, tuple) else [found]
        next_state = self._checked_state(parts.pop()) if self._state_shapes is not None else None
        value = parts[1] if len(parts) > 1 else None
        if self._value is not None:
            value = self._value(*arguments)
        return parts[0], value, next_state

    def _checked_state(self, state: Any) -> Any:
        assert self._state_shapes is not None
        names = state.keys() if isinstance(state, dict) else type(state).__name__
        if names != self._state_shapes.keys():
            raise TypeError(
                "the last thing that a recurrent policy's `distribution` returns is the next "
                f"state, a dict with {', '.join(self._state_shapes)} as in state_shapes; this is "
                f"{f'a {names}' if isinstance(names, str) else f'a dict with {list(names)}'}"
            )
        return state

    def _state_tensors(self, state: Any, observations: Any, device: torch.device) -> Any:
        assert self._state_shapes is not None
        if state is not None:
            return _to_tensors(state, device)
        rows = len(_first_leaf(observations))
        return {
            name: torch.zeros((rows, *shape), device=device)
            for name, shape in self._state_shapes.items()
        }

    def weights(self) -> Mapping[str, Array]:
        """Parameters and buffers, as arrays that share the module's memory where they can."""
        return {
            name: to_array(tensor)
            for name, tensor in unwrap(self.module).state_dict().items()
            if self._travels(name)
        }

    def _travels(self, name: str) -> bool:
        return not any(_is_part(name, part) for part in self._stays_at_head)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy these weights into the module."""
        tensors = unwrap(self.module).state_dict()
        with torch.no_grad():
            for name, array in weights.items():
                tensors[name].copy_(torch.from_numpy(array))

    def __getstate__(self) -> dict[str, Any]:
        # A copy only acts, so dropout is off and statistics are not updated.
        module = copy.deepcopy(unwrap(self.module)).to("cpu").eval()
        self._leave_out_of(module)
        return {**self.__dict__, "module": module, "_a_parameter": _a_parameter(module)}

    def _leave_out_of(self, module: nn.Module) -> None:
        """Replace what stays at the head by one NaN in its shape: whoever uses it notices."""
        named = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        # A tensor that is also a part of what acts goes with it.
        needed = {id(tensor) for name, tensor in named if self._travels(name)}
        for _, tensor in named:
            if id(tensor) not in needed:
                nothing = float("nan") if tensor.is_floating_point() else 0
                tensor.data = torch.full((), nothing, dtype=tensor.dtype).expand(tensor.shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_copy = True
        worker = os.environ.get("CLUSTERENV_WORKER")
        if worker is not None:
            # A worker owns one core unless its engine has threads, and checks the outputs itself.
            torch.set_num_threads(int(os.environ.get("CLUSTERENV_THREADS", "1")))
            td.Distribution.set_default_validate_args(False)
            self.module.to(device_of_worker(self._device, int(worker)))
            self._a_parameter = _a_parameter(self.module)
        device = self._a_parameter.device
        if device.type == "cpu":
            _act_by_numpy(self.module)


def _assert_has_forward(module: nn.Module) -> None:
    """TypeError if calling it raised PyTorch's own NotImplementedError."""
    kind, base = type(module), nn.Module
    is_called_as_usual = isinstance(module, base) and kind.__call__ is base.__call__
    if is_called_as_usual and getattr(module.forward, "__func__", None) is base.forward:
        raise TypeError(
            f"{kind.__name__} has no forward: let it return a torch.distributions object, "
            "or pass TorchPolicy(module, distribution=lambda module, observations: …)"
        )


def _assert_takes(function: Callable[..., Any], name: str, arguments: list[str]) -> None:
    """TypeError if the function cannot be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of an object that does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        memory = (
            "without state_shapes= a policy has no memory"
            if "state" in arguments
            else "a policy with memory needs state_shapes=, and then gets its state as well"
        )
        raise TypeError(
            f"{name} is called with ({', '.join(arguments)}), but takes {signature}: {memory}"
        ) from None


def check_device(device: str) -> str:
    """Return ``device`` if copies can act there; ValueError says what is wrong with it."""
    try:
        kind = torch.device(device.format(worker=0)).type
    except (RuntimeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"device={device!r} is unknown to torch: pass 'cpu', 'cuda' or 'cuda:{{worker}}'"
        ) from error
    if kind == "meta":
        raise ValueError("device='meta' has no numbers to act with: pass 'cpu' or 'cuda'")
    return device


def device_of_worker(device: str, worker: int) -> torch.device:
    """Where the copy in this worker acts; RuntimeError if its machine has no such device."""
    if torch.device(device.format(worker=0)).type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found = torch.device(device.format(worker=worker % max(1, count)))
        if (found.index or 0) < count:
            return found
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise RuntimeError(
            f"TorchPolicy(device={device!r}): worker {worker} finds {count} GPUs with torch "
            f"{torch.__version__}, CUDA_VISIBLE_DEVICES is {visible}. Give its host a GPU and a "
            "torch with CUDA, or leave out device="
        )
    return torch.device(device.format(worker=worker))


def _act_by_numpy(module: nn.Module) -> None:
    """Let NumPy compute the perceptrons inside the module."""
    for part in module.modules():
        if isinstance(part, nn.Sequential) and _is_perceptron(part):
            part.forward = _NumpyForward(part)  # type: ignore[method-assign]


def _is_perceptron(part: nn.Sequential) -> bool:
    """Whether it consists of small linear layers and activations only, without hooks."""
    kinds = [type(layer) for layer in part]
    own = [vars(one)["forward"] for one in (part, *part) if "forward" in vars(one)]
    return (
        type(part).forward is nn.Sequential.forward
        and all(isinstance(forward, _NumpyForward) for forward in own)
        and kinds[:1] == [nn.Linear]  # The others work in place.
        and all(kind is nn.Linear or kind in _ACTIVATIONS for kind in kinds)
        and all(weight.dtype is torch.float32 for weight in part.parameters())
        and all(weight.numel() <= _FEW_WEIGHTS for weight in part.parameters())
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in part)
    )


class _NumpyForward:
    """The forward pass of a perceptron: in NumPy while it acts, else in torch."""

    def __init__(self, part: nn.Sequential) -> None:
        self._part: Any = part
        self._layers = [_numpy_layer(layer) for layer in part]
        self._weight = next(part.parameters())
        self._address = self._weight.data_ptr()

    def __call__(self, rows: torch.Tensor) -> Any:
        # Weights change in place; once they have moved, the layers' arrays are stale.
        arrays_are_weights = self._weight.data_ptr() == self._address
        acts = arrays_are_weights and torch.is_inference_mode_enabled()
        if not acts or rows.dtype is not torch.float32:
            return nn.Sequential.forward(self._part, rows)  # type: ignore[no-untyped-call]
        array = to_array(rows)
        for layer in self._layers:
            array = layer(array)
        return torch.from_numpy(array)


def _numpy_layer(layer: Any) -> perceptron.Layer:
    if type(layer) is not nn.Linear:
        return _ACTIVATIONS[type(layer)]
    bias = 0.0 if layer.bias is None else to_array(layer.bias)
    return partial(perceptron.linear, to_array(layer.weight), bias)


_ACTIVATIONS: dict[type[nn.Module], perceptron.Layer] = {
    nn.ReLU: perceptron.relu,
    nn.Tanh: perceptron.tanh,
}


def _is_part(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, DistributedDataParallel and DataParallel."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def _call_module(module: nn.Module, *arguments: Any) -> Any:
    return module(*arguments)


def _a_parameter(module: nn.Module) -> torch.Tensor:
    return next(module.parameters(), torch.empty(0))


def _to_tensors(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, dict):
        return {key: _to_tensors(value, device) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_to_tensors(value, device) for value in tree)
    tensor = torch.from_numpy(np.ascontiguousarray(tree))
    return tensor if device.type == "cpu" else tensor.to(device)


def to_device(array: Array, device: Any) -> Any:
    """Turn an array into a tensor on ``device``. On the CPU it shares the memory; on a GPU it is
    a copy out of pinned memory, made while the caller goes on. Text and objects, for which torch
    has no dtype, stay as they are.
    """
    if array.dtype.kind not in "biufc":
        return array
    tensor, target = torch.from_numpy(array), torch.device(device)
    if target.type == "cpu":
        return tensor
    if target.type != "cuda":
        return tensor.to(target)
    return tensor.pin_memory().to(target, non_blocking=True)


def _to_arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _to_arrays(value) for key, value in tree.items()}
    return None if tree is None else to_array(tree)


def _first_leaf(tree: Any) -> Any:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree
