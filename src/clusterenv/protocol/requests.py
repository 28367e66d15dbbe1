"""Requests: the head asks a host, and the host asks its workers, in the same words.

Every request carries an id, so that a late reply is never taken for a newer one, and names the
slots it is about. A host passes it on to each worker with that worker's slots.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.message import Message


class Request(Message):
    """Something to be done for some slots (ascending)."""

    request: int
    slots: tuple[int, ...]


class Reset(Request):
    """Reset these slots. ``seeds`` packs one per slot (they may exceed 64 bits), ``options`` packs
    the user's; policies draw from ``run_seed``."""

    run_seed: int
    seeds: bytes = b""
    options: bytes = b""
    reports_loss: bool = False
    """A reset inside a step: the slots' rows must also report that their env was lost."""
    together: bool = True
    """Whether the rows of all slots are wanted at once or as they come."""


class Step(Request):
    """Step these slots.

    The actions are beside the request: in the rows that host and worker share (with ``dtype``), or,
    if the action space is not a single array, packed in ``packed_actions``, one per slot.
    """

    dtype: str = ""
    packed_actions: tuple[bytes, ...] = ()
    num_parts: int = 1
    """Each worker answers for its slots in this many parts, one after the other."""
    together: bool = True
    """Whether the rows of all slots are wanted at once or as they come."""


class Call(Request):
    """Call or read an attribute of each env; ``arguments`` packs (args, kwargs)."""

    name: str
    arguments: bytes


class SetAttr(Request):
    """Set an attribute of each env; ``values`` has a packed value per slot."""

    name: str
    values: tuple[bytes, ...]


class CountTime(Request):
    """Start or stop counting the seconds of each part of the workers' work.

    The host answers by itself, from memory shared with its workers, with one value per worker.
    """

    on: bool


class Measured(msgspec.Struct, array_like=True, frozen=True):
    """How far the newest version is from ``held``, on rows where ``held`` acted."""

    held: int
    divergence: float
    standard_error: float
    effective_sample_size: float
    """As a share of the rows, if ``held`` acts in place of the newest version."""


class Newest(msgspec.Struct, array_like=True, frozen=True):
    """What the head has published; a host decides by this whether to pull."""

    policy_id: int
    version: int
    measured: Measured | None = None


class Act(Request):
    """Step these slots with the actions of the policy."""

    newest: Newest


class Collect(Request):
    """Collect ``num_steps`` steps of these slots with the policy."""

    num_steps: int
    newest: Newest
    together: bool = False
    """Whether the fragments of all slots are wanted in one piece."""
    asks_again: bool = False
    """Whether the head asks for these slots again once it has the fragment, as in a stream."""
    infos: bool = True
    """Whether infos are wanted too."""
    ahead: bool = False
    """Whether newer versions may be published before it begins. Even then ``newest`` decides, and a
    worker acts with the version that its host puts there."""


class Evaluate(Request):
    """Play ``episodes[i]`` whole episodes for ``slots[i]``, with the newest weights.

    They are played in envs of ``backend`` (pickled) or, if it is empty, in envs like the others.
    """

    episodes: tuple[int, ...]
    seed: int
    deterministic: bool
    newest: Newest
    backend: bytes = b""


PolicyRequest = Act | Collect | Evaluate
"""The requests that need a policy."""

AnyRequest = Reset | Step | Call | SetAttr | CountTime | Act | Collect | Evaluate


def is_ahead(request: AnyRequest | None) -> TypeGuard[Collect]:
    """Whether newer versions may be published before this begins."""
    return isinstance(request, Collect) and request.ahead


def narrow(request: AnyRequest, number: int, slots: tuple[int, ...], rows: slice) -> AnyRequest:
    """``request`` for one worker: with this number, and those of its slots that are in ``rows``."""
    changes: dict[str, object] = {"request": number, "slots": slots}
    match request:
        case Reset() if request.seeds:
            seeds = unpack(request.seeds, allow_pickle=False)
            changes["seeds"] = pack(seeds[rows], allow_pickle=False)
        case Step() if request.packed_actions:
            changes["packed_actions"] = request.packed_actions[rows]
        case SetAttr():
            changes["values"] = request.values[rows]
        case Evaluate():
            changes["episodes"] = request.episodes[rows]
    return msgspec.structs.replace(request, **changes)
