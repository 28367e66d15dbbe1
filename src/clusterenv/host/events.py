"""What a host reports to whoever drives it: the head, or the loop that serves a remote head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.replies import Raised
from clusterenv.protocol.requests import AnyRequest


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of these slots have been written; what they do not say is packed."""

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
    """What will not be answered for these slots."""

    request: AnyRequest
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker, or a whole host, is lost: the envs of these slots are gone.

    Unless ``error`` says why not, a replacement is on its way.
    """

    slots: tuple[int, ...]
    reason: str
    obituary: str
    voided: tuple[Voided, ...] = ()
    error: str = ""
    who: str = ""
    """The worker or the host; nobody, if its loss was told before."""
    slot: int | None = None
    """The slot whose env was running then, if that is known."""
    in_vain: bool = False
    """Nothing is lost now: the host was asked to work on envs that it had lost before, and that
    nobody has reset since. Whoever asked may have heard of the loss meanwhile."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A worker makes no progress; told once, while it may still go on."""

    worker: str
    text: str
    """What it does, for how long, and its stack."""


@dataclass(frozen=True, slots=True)
class PullWanted:
    """The host wants the newest weights; it holds this policy (0: none) and version."""

    policy_id: int
    held: int
    cause: str
    threshold: float
    version: int = 0
    """The one that it wants in place of the newest, if it wants a certain one."""


Event = Rows | Values | FragmentPart | Failed | WorkerWarned | Stuck | Lost | PullWanted
