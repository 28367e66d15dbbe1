"""Plain Python values ⇄ bytes, exactly: a tuple stays a tuple, a numpy scalar keeps its dtype.

Unlike pickle, decoding only builds data and runs nothing. Objects that plain data cannot express
are pickled only if the caller allows it (Security in ARCHITECTURE.md): from the head to hosts and
workers, from those that this process started itself, or when the user trusts the workers.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cloudpickle
import msgspec
import numpy as np
from gymnasium.spaces import GraphInstance

from clusterenv.errors import ProtocolError, UntrustedValueError

# As dtype.str writes them: booleans, numbers, times, text and raw bytes, but never objects.
_DTYPE_NAME = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9a-zA-Zμ]+\])?")
# Copying or printing deeper nesting could exceed Python's own limit.
_DEEPEST, _ANY_DEPTH = 64, 1 << 30
_AS_IS = frozenset({type(None), bool, float, str, bytes})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack(value: Any, *, allow_pickle: bool) -> bytes:
    """Encode ``value``; UntrustedValueError if that needs pickle and pickle is not allowed."""
    return _encode(_to_plain(value, allow_pickle, _ANY_DEPTH if allow_pickle else _DEEPEST))


def unpack(data: bytes, *, allow_pickle: bool) -> Any:
    """Decode what :func:`pack` made; ProtocolError for anything else."""
    try:
        return _from_plain(_decode(data), allow_pickle, _ANY_DEPTH if allow_pickle else _DEEPEST)
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(f"cannot decode a packed value: {ProtocolError.of(error)}") from error


def _to_plain(value: Any, allow_pickle: bool, levels: int) -> Any:
    kind = type(value)
    if kind is str and not value.isascii() and not _is_utf8(value):
        return ["str", value.encode("utf-8", "surrogatepass")]
    if kind in _AS_IS:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else ["int", hex(value)]
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        if not levels:
            raise UntrustedValueError(
                f"a {kind.__name__} is nested more than {_DEEPEST} levels deep, and workers may "
                "not send that; send flatter data, or pass trust_workers=True"
            )
        plain = convert(value, allow_pickle, levels - 1)
        if plain is not None:
            return plain
    elif isinstance(value, np.generic) and kind.__module__ == "numpy" and kind is not np.void:
        return ["scalar", value.dtype.str, value.tobytes()]
    if not allow_pickle:
        raise UntrustedValueError(
            f"{value!r:.80} of type {kind.__module__}.{kind.__qualname__} is not plain data, and "
            "workers may not send pickles; send numbers, strings, arrays, lists, tuples or dicts, "
            "or pass trust_workers=True if you trust the machines that your workers run on"
        )
    return ["pickle", cloudpickle.dumps(value)]


def _array_to_plain(
    value: np.ndarray[Any, Any], allow_pickle: bool, levels: int
) -> list[Any] | None:
    if value.dtype.names is not None:
        return None
    if value.dtype.hasobject:
        items = [_to_plain(item, allow_pickle, levels) for item in value.flat]
        return ["objects", value.shape, items]
    return ["array", value.dtype.str, value.shape, value.tobytes()]


def _items_to_plain(tag: str) -> Callable[[Any, bool, int], list[Any]]:
    return lambda value, allow_pickle, levels: [
        tag,
        [_to_plain(item, allow_pickle, levels) for item in value],
    ]


def _dict_to_plain(value: dict[Any, Any], allow_pickle: bool, levels: int) -> list[Any]:
    pairs = [
        (_to_plain(key, allow_pickle, levels), _to_plain(item, allow_pickle, levels))
        for key, item in value.items()
    ]
    return ["dict", pairs]


_CONVERTERS: dict[type, Callable[[Any, bool, int], list[Any] | None]] = {
    dict: _dict_to_plain,
    list: _items_to_plain("list"),
    tuple: _items_to_plain("tuple"),
    set: _items_to_plain("set"),
    frozenset: _items_to_plain("frozenset"),
    GraphInstance: _items_to_plain("graph"),
    np.ndarray: _array_to_plain,
    complex: lambda value, *_: ["complex", value.real, value.imag],
    # Not as scalars: numpy has no empty ones, and drops trailing zeros.
    np.str_: lambda value, *_: ["str_", value.encode("utf-8", "surrogatepass")],
    np.bytes_: lambda value, *_: ["bytes_", bytes(value)],
}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_plain(plain: Any, allow_pickle: bool, levels: int) -> Any:
    kind = type(plain)
    if kind in _AS_IS or kind is int:
        return plain
    if kind is not list:
        raise ProtocolError(f"a packed value holds a {kind.__name__}, which pack never makes")
    if not levels:
        raise ProtocolError(f"a packed value is nested more than {_DEEPEST} levels deep")
    levels -= 1
    match plain:
        case ["dict", [*pairs]]:
            return {
                _from_plain(key, allow_pickle, levels): _from_plain(item, allow_pickle, levels)
                for key, item in pairs
            }
        case ["list" | "tuple" | "set" | "frozenset" | "graph" as tag, [*items]]:
            return _BUILDERS[tag]([_from_plain(item, allow_pickle, levels) for item in items])
        case ["scalar", str(dtype), bytes(raw)]:
            return np.frombuffer(raw, dtype=dtype_of_plain_data(dtype), count=1)[0]
        case ["array", str(dtype), [*shape], bytes(raw)]:
            return _read_array(raw, dtype_of_plain_data(dtype), shape)
        case ["objects", [*shape], [*items]]:
            array = np.empty(len(items), dtype=object)
            for index, item in enumerate(items):
                array[index] = _from_plain(item, allow_pickle, levels)
            return array.reshape(shape)
        case ["str" | "str_" as tag, bytes(raw)]:
            text = raw.decode("utf-8", "surrogatepass")
            return text if tag == "str" else np.str_(text)
        case ["bytes_", bytes(raw)]:
            return np.bytes_(raw)
        case ["int", str(digits)]:
            return int(digits, 16)
        case ["complex", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case ["pickle", bytes(raw)] if allow_pickle:
            return pickle.loads(raw)
    raise ProtocolError(f"a packed value holds {plain[:1]!r:.80}, which is not allowed here")


def _read_array(raw: bytes, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray[Any, Any]:
    # frombuffer gives a read-only view of the message, but the receiver owns the value.
    array = np.frombuffer(raw, dtype=dtype).reshape(shape).copy()
    check_bools(array, "an array")
    return array


def check_bools(array: np.ndarray[Any, Any], what: str) -> None:
    """ProtocolError if it holds booleans other than 0 and 1.

    NumPy relies on this: with others, masks select more rows than there are.
    """
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise ProtocolError(f"{what} has truth values other than 0 and 1")


_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "graph": lambda items: GraphInstance(*items),
}


@lru_cache(maxsize=256)
def dtype_of_plain_data(name: str) -> np.dtype[Any]:
    """The dtype of this name, unless it could hold references to Python objects."""
    if not _DTYPE_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r:.80} is no dtype of plain data, or holds objects")
    try:
        return np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ProtocolError(f"{name!r:.80} is no dtype: {error}") from error
