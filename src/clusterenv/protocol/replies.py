"""A worker's replies to its host."""

from __future__ import annotations

from clusterenv.protocol.message import Message
from clusterenv.protocol.requests import (
    AnyRequest,
    Call,
    Collect,
    Evaluate,
    SetAttr,
)


class Reply(Message):
    """Answers a request."""

    request: int


class Stepped(Reply):
    """The rows of the slots are written; ``objects`` packs the leaves that are not arrays,
    ``infos`` is what pack_infos makes, ``acted`` packs what a policy did.

    ``slots`` are the slots of the request that it is about, if others follow; else it is empty.
    """

    objects: bytes = b""
    infos: bytes = b""
    acted: bytes = b""
    slots: tuple[int, ...] = ()


class Returned(Reply):
    """Answer to Call and Evaluate: ``values`` packs one value per slot; for SetAttr none."""

    values: bytes


class Collected(Reply):
    """A fragment: one frame per named array."""

    version: int
    names: tuple[str, ...]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    """The dtype and shape of each."""


class Raised(Reply):
    """User code raised while the worker handled ``request``."""

    slot: int | None
    module: str
    name: str
    arguments: bytes
    text: str
    traceback: str
    action: str = ""
    by_policy: bool = False


_REPLY_TO: dict[type, type] = {
    Call: Returned,
    SetAttr: Returned,
    Evaluate: Returned,
    Collect: Collected,
}


def reply_to(request: AnyRequest) -> type:
    """The kind of reply that answers ``request``, unless user code raises."""
    return _REPLY_TO.get(type(request), Stepped)
