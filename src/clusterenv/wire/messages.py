"""The messages between the head and a host on another machine, besides requests.

A message is one of these structs as a msgpack header, followed by raw array frames if its docstring
says so.
"""

from __future__ import annotations

from typing import Union

import msgspec

from clusterenv.host.plan import Plan, Spaces
from clusterenv.protocol.message import Decoder, Message
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import (
    Act,
    Call,
    Collect,
    CountTime,
    Evaluate,
    Newest,
    Reset,
    SetAttr,
    Step,
)
from clusterenv.wire.compression import ZLIB
from clusterenv.wire.observation_codec import Coding

PROTOCOL_VERSION = 10

# Host → head: joining.


class Hello(Message):
    """The first message of a host or an applicant: who it is and what it runs."""

    protocol: int
    versions: dict[str, str]
    machine: str
    pid: int
    workers: int
    place: str = ""
    """Where it runs, in its launcher's words."""


class WorkerReport(msgspec.Struct, array_like=True, frozen=True):
    """One worker of a host."""

    name: str
    pid: int
    state: str
    first_slot: int
    num_slots: int
    incarnation: int


class Built(Message):
    """The host's workers have built their envs: how many slots each has, and its description."""

    epoch: int
    descriptions: tuple[tuple[int, bytes], ...]


class Ready(Message):
    """All workers of the host are ready for work."""

    epoch: int


class CannotStart(Message):
    """The host cannot build its envs, or has lost a worker while it did."""

    text: str
    raised: Raised | None = None
    where: str = ""


class StaffReport(Message):
    """The workers of the host as they are now."""

    workers: tuple[WorkerReport, ...]


class Leaving(Message):
    """The host must end soon, through no fault of its own; ``reason`` says why."""

    reason: str


# Head → host: joining.


class Enrol(Message):
    """To an applicant: its own invitation, with which it must come back."""

    invitation: bytes

    def __repr__(self) -> str:
        # Never the keys in it: a repr may end up in logs.
        return "Enrol(…)"


class Build(Message):
    """Build the envs of this plan, in place of earlier ones; a new epoch begins."""

    plan: Plan
    epoch: int


class LayOut(Message):
    """What all envs of the run agree on, and which compression the head can read."""

    spaces: Spaces
    compression: str = ZLIB


class Refused(Message):
    """The head refuses this host, and says why."""

    reason: str


class Close(Message):
    """Close the envs and end, after ``grace_s`` at the latest."""

    grace_s: float


# Head → host: requests travel as they are. The frame of a Step has its actions.


class Abandon(Message):
    """Ignore all requests so far; replies from now on belong to this epoch."""

    epoch: int


class Announce(Message):
    """There is a new version; no bytes of it move until the host pulls."""

    newest: Newest


class Weights(Message):
    """The weights of a version: one frame with the encoded vector.

    ``checksum`` is that of the decoded vector, ``base`` the version that a delta starts from. A
    TakePolicy precedes it if the host does not have the policy.
    """

    policy_id: int
    version: int
    checksum: int
    encoding: str
    cause: str
    """The cause of the pull that this answers."""
    base: int = 0


# Host → head: results. ``epoch`` is that of the last Build or Abandon.


class Extra(msgspec.Struct, array_like=True):
    """What the rows of some slots (ascending) cannot hold."""

    slots: tuple[int, ...]
    objects: bytes = b""
    infos: bytes = b""
    acted: bytes = b""


class RowsMade(Message):
    """These slots (ascending) were stepped or reset; one frame with their rows, see RowLayout."""

    epoch: int
    slots: tuple[int, ...] | None
    """None for all slots of the host."""
    extras: tuple[Extra, ...] = ()


class ValuesMade(Message):
    """What a call of these slots returned, packed."""

    epoch: int
    request: int
    slots: tuple[int, ...]
    values: bytes


class FragmentMade(Message):
    """A fragment of these slots: one frame per named array."""

    epoch: int
    request: int
    slots: tuple[int, ...]
    version: int
    names: tuple[str, ...]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    """The dtype and shape of each array."""
    others: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Further requests, and the slots that answer them; the other slots answer ``request``."""
    codings: tuple[Coding, ...] = ()
    """The arrays whose frames are coded."""


class RequestFailed(Message):
    """User code raised while these slots were worked on."""

    epoch: int
    request: int
    slots: tuple[int, ...]
    raised: Raised
    where: str


class Warned(Message):
    """A Python warning on a worker."""

    worker: str
    category: str
    text: str


class WorkerLost(Message):
    """A worker was lost, and the envs of these slots are gone. A replacement is on its way, unless
    ``error`` says why not. ``voided`` are the requests, with their slots, that will not be
    answered. ``in_vain``: the envs were lost before these requests came."""

    epoch: int
    slots: tuple[int, ...]
    reason: str
    obituary: str
    voided: tuple[tuple[int, tuple[int, ...]], ...] = ()
    error: str = ""
    worker: str = ""
    """Its name; empty if its loss was reported before."""
    slot: int | None = None
    """The slot whose env was running at the time, if known."""
    in_vain: bool = False


class WorkerStuck(Message):
    """A worker makes no progress; ``text`` says what it is doing, and has its stack."""

    worker: str
    text: str


class Pull(Message):
    """A host asks for the newest weights; it has this policy (0 for none) and version."""

    policy_id: int
    held: int
    cause: str
    threshold: float = 0.0
    version: int = 0
    """The version that it wants instead of the newest, or 0."""


class Pulled(Message):
    """The weights of ``version`` were loaded, this many seconds after the host asked for them."""

    version: int
    seconds: float


FromHost = Union[  # noqa: UP007 (msgspec reads this at run time)
    Hello,
    Built,
    Ready,
    CannotStart,
    StaffReport,
    Leaving,
    RowsMade,
    ValuesMade,
    FragmentMade,
    RequestFailed,
    Warned,
    WorkerLost,
    WorkerStuck,
    Pull,
    Pulled,
]
FromHead = Union[  # noqa: UP007
    Enrol,
    Build,
    LayOut,
    Refused,
    Close,
    Abandon,
    Announce,
    TakePolicy,
    Weights,
    Reset,
    Step,
    Call,
    SetAttr,
    CountTime,
    Act,
    Collect,
    Evaluate,
]

decode_from_host = Decoder(FromHost).decode
decode_from_head = Decoder(FromHead).decode
