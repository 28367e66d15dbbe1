"""Pickles that bring along what unpickling them takes: the user's modules and env ids."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import uuid
from typing import Any

from clusterenv.plain.values import pack
from clusterenv.wire.env_ids import pickle_registrations, register_from
from clusterenv.wire.pickling import pickle_for_workers
from clusterenv.wire.sent_modules import SENT_MODULES, decode_modules, encode_modules
from clusterenv.wire.user_modules import UserModules, is_users_path, names_in_pickle

_SENDER = uuid.uuid4().hex
"""Identifies this process and those forked from it."""


class Packer:
    """Pickles what travels to the workers of a run. ``pickle.loads`` unpacks it.

    Args:
        elsewhere: Whether workers run where the user's files may be missing. Workers on this
            machine import them from the same files as the head.
    """

    def __init__(self, elsewhere: bool) -> None:
        self._elsewhere = elsewhere
        self._modules = UserModules()
        # Policies may be published from another thread.
        self._lock = threading.Lock()

    def pack(self, value: Any, *, with_env_ids: bool = False) -> bytes:
        """``value`` as bytes; CannotPickleError names the part that cannot travel."""
        blob = pickle_for_workers(value)
        if not (self._elsewhere or with_env_ids):
            return blob
        with self._lock:
            names = names_in_pickle(blob)
            ids = pickle_registrations(names, self._is_users) if with_env_ids else b""
            needed = names | names_in_pickle(ids) if self._elsewhere else set()
            modules = encode_modules(self._modules.needed_by(needed))
        return pickle.dumps(_Parcel(modules, ids, blob)) if modules or ids else blob

    def pack_values(self, value: Any) -> bytes:
        """``value`` for :func:`clusterenv.plain.values.unpack`."""
        packed = pack(value, allow_pickle=True)
        if not self._elsewhere or b"pickle" not in packed:
            return packed
        return pack(_Parcel(b"", b"", self.pack(value)), allow_pickle=True)

    def _is_users(self, module: str) -> bool:
        return module == "__main__" or self._modules.find(module) is not None

    @property
    def search_path(self) -> tuple[str, ...]:
        """Where workers look for modules; elsewhere, only where the user's modules might be."""
        paths = [path for path in sys.path if isinstance(path, str)]
        paths = [os.path.abspath(path) if os.path.exists(path or ".") else path for path in paths]
        if self._elsewhere:
            paths = [path for path in paths if is_users_path(path)]
        return tuple(dict.fromkeys(paths))

    @property
    def working_directory(self) -> str:
        """Where workers should work if they can; empty if they are there already."""
        try:
            return os.getcwd() if self._elsewhere else ""
        except FileNotFoundError:  # somebody has removed it
            return ""


class _Parcel:
    def __init__(self, modules: bytes, ids: bytes, blob: bytes) -> None:
        self._contents = _SENDER, modules, ids, blob

    def __reduce__(self) -> tuple[Any, ...]:
        return open_parcel, self._contents


def open_parcel(sender: str, modules: bytes, ids: bytes, blob: bytes) -> Any:
    """Make the modules and ids known here, then unpickle what needs them."""
    # The head opens its own parcels too, for its copy of a policy, and has all of this already.
    if sender != _SENDER:
        SENT_MODULES.add(decode_modules(modules))
        if ids:
            register_from(ids)
    return pickle.loads(blob)
