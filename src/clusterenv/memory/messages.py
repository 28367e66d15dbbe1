"""The messages between a host and its workers, besides requests and replies.

They travel through the rings of a mailbox, with large parts in frames beside them.
"""

from __future__ import annotations

from typing import Union

from clusterenv.memory.frames import InFrames
from clusterenv.protocol.message import Decoder, Message
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.replies import Collected, Raised, Returned, Stepped
from clusterenv.protocol.requests import (
    Act,
    Call,
    Collect,
    Evaluate,
    Reset,
    SetAttr,
    Step,
)

# Host → worker.


class BuildEnvs(Message):
    """Build the envs of these slots, in place of earlier ones. ``backend`` is pickled: pickle
    travels only from the head downwards."""

    slots: tuple[int, ...]
    backend: bytes
    autoreset_mode: str
    trusted: bool
    search_path: tuple[str, ...] = ()
    working_directory: str = ""
    deal: int = 0
    """Comes back with EnvsBuilt and RowsMapped."""


class MapRows(Message):
    """What all envs of the run have in common, the packed spaces; and the host's rows."""

    observation_space: bytes
    action_space: bytes
    first_slot: int
    num_slots: int
    num_workers: int
    worker: int
    """The place of the worker's flags."""


class CloseEnvs(Message):
    """Close the envs and end."""


class StepCall(Message):
    """A step of all the worker's slots that came without a message; see Mailbox."""

    request: int
    dtype: str


class PartCall(Message):
    """A :class:`StepCall` for ``count`` of the worker's slots, from its ``first`` on."""

    request: int
    dtype: str
    first: int
    count: int
    number: int
    """Where it is answered; see PartFlags."""


# Worker → host.


class EnvsBuilt(Message):
    """The worker has built its envs; ``description`` packs spaces, metadata and render mode."""

    description: bytes
    deal: int = 0


class RowsMapped(Message):
    """The worker is ready for work; ``error`` says why it could not map the rows."""

    error: str = ""
    deal: int = 0


class WorkerLeaving(Message):
    """Something other than the host told the worker to end; ``reason`` says what."""

    reason: str


class EnvWarned(Message):
    """A Python warning on the worker."""

    category: str
    text: str


FromHost = Union[  # noqa: UP007 (msgspec reads this at run time)
    InFrames,
    BuildEnvs,
    MapRows,
    TakePolicy,
    CloseEnvs,
    Reset,
    Step,
    Call,
    SetAttr,
    Act,
    Collect,
    Evaluate,
]
FromWorker = Union[  # noqa: UP007
    InFrames, EnvsBuilt, RowsMapped, WorkerLeaving, EnvWarned, Stepped, Returned, Collected, Raised
]

decode_from_host = Decoder(FromHost).decode
decode_from_worker = Decoder(FromWorker).decode
