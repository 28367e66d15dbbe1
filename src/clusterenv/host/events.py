"""What a host reports to its driver: the head, or the loop that serves a remote head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import AnyRequest


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of these slots have been written; what they cannot hold is packed beside them."""

    request: AnyRequest
    slots: Sequence[int]
    objects: bytes = b""
    infos: bytes = b""
    acted: bytes = b""


@dataclass(frozen=True, slots=True)
class Values:
    """What calling, evaluating or profiling these slots returned, packed."""

    request: AnyRequest
    slots: Sequence[int]
    values: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """User code raised while these slots were worked on."""

    request: AnyRequest
    slots: Sequence[int]
    raised: Raised
    where: str
    """The worker, with its process."""


@dataclass(frozen=True, slots=True)
class WorkerWarned:
    """A Python warning on a worker."""

    worker: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Voided:
    """A request that will not be answered for these slots."""

    request: AnyRequest
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker, or a whole host, is lost, and the envs of these slots are gone.

    A replacement is on its way, unless ``error`` says why not.
    """

    slots: tuple[int, ...]
    reason: str
    obituary: str
    voided: tuple[Voided, ...] = ()
    error: str = ""
    who: str = ""
    """The worker or the host; empty if its loss was reported before."""
    slot: int | None = None
    """The slot whose env was running at the time, if known."""
    in_vain: bool = False
    """Nothing is lost now: the host was asked to work on envs that it had lost before and that
    nobody has reset since. By now the head may know of that loss. A fragment of other slots of the
    same worker is void with theirs."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A worker makes no progress; reported once, while it may still recover."""

    worker: str
    text: str
    """What it is doing, for how long, and its stack."""


@dataclass(frozen=True, slots=True)
class PullWanted:
    """The host wants the newest weights; it holds this policy (0 for none) and version."""

    policy_id: int
    held: int
    cause: str
    threshold: float
    version: int = 0
    """The version that it wants instead of the newest, or 0."""


Event = Rows | Values | FragmentPart | Failed | WorkerWarned | Stuck | Lost | PullWanted
