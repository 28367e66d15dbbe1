"""The messages between head and worker.

A message is one of these structs as a msgpack header, followed by raw array frames where its
docstring says so. Arrays of slots that share memory with the head lie in the arena instead.
"""

from __future__ import annotations

from typing import Union

import msgspec

PROTOCOL_VERSION = 6


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages."""


class ArrayHeader(msgspec.Struct, array_like=True, frozen=True):
    """How to read one array frame."""

    dtype: str
    shape: tuple[int, ...]


class Reply(Message):
    """Base of what answers a request: it goes straight to the thread that waits for it."""

    request: int


class InFrameBuffer(Message):
    """A message whose frames lie in the sender's frame buffer, up to position ``end``."""

    header: bytes
    offset: int
    sizes: tuple[int, ...]
    end: int


# Worker → head: joining.


class Hello(Message):
    """First words of a worker, or of an applicant: who it is and what it runs."""

    protocol: int
    versions: dict[str, str]
    host: str
    pid: int
    neighbourhood: str = ""
    """Workers with the same one can read each other's shelves; only ever a hint."""


class Built(Message):
    """The worker has built its envs; ``description`` packs spaces, metadata and render mode."""

    description: bytes
    deal: int = 0


class LaidOut(Message):
    """The worker is ready for work; ``error`` says why it could not map the arena."""

    error: str = ""
    deal: int = 0


class Leaving(Message):
    """The worker will have to end soon, through no fault of its own; ``reason`` says why."""

    reason: str


# Head → worker: joining.


class Enrol(Message):
    """To an applicant: its own invitation, with which it is to come back."""

    invitation: bytes

    def __repr__(self) -> str:
        # Never the keys in it: a repr ends up in logs.
        return "Enrol(…)"


class Build(Message):
    """Build the envs of these slots, in place of what was built before. ``backend`` and
    ``sync_rule`` are pickled: head to worker is the one direction in which pickle travels."""

    slots: tuple[int, ...]
    backend: bytes
    autoreset_mode: str
    sync_rule: bytes
    search_path: tuple[str, ...] = ()
    trusted: bool = False
    deal: int = 0
    """Comes back with Built and LaidOut."""
    working_directory: str = ""
    place: int = 0
    """Where the worker puts its marks."""


class Layout(Message):
    """What all workers agree on: packed spaces, and the arena's size where memory is shared."""

    num_envs: int
    observation_space: bytes
    action_space: bytes
    arena_size: int = 0
    num_places: int = 0


class Refused(Message):
    """The head will not have this worker, and says why."""

    reason: str


class Close(Message):
    """Close the envs and end."""


# Head → worker: work on slots. Every request carries an id, so that a late reply is never taken
# for a newer one.


class Reset(Message):
    """Reset these slots. ``seeds`` packs one per slot (they may exceed 64 bits), ``options`` the
    user's; policies draw from ``run_seed``."""

    request: int
    slots: tuple[int, ...]
    run_seed: int
    seeds: bytes = b""
    options: bytes = b""


class Step(Message):
    """Step these slots (None: all of the worker's).

    The actions lie in the arena (``actions.dtype`` there), in one frame, or, where the action
    space is no single array, packed in ``packed_actions``.
    """

    request: int
    slots: tuple[int, ...] | None = None
    actions: ArrayHeader | None = None
    packed_actions: bytes = b""


class StepCall(Message):
    """A :class:`Step` of all the worker's slots that came without a message, see Mailbox."""

    request: int
    dtype: str


class PartCall(Message):
    """A :class:`StepCall` for ``count`` of the worker's slots, from its ``first`` on."""

    request: int
    dtype: str
    first: int
    count: int
    number: int
    """Where it is answered, see PartMarks."""


class Call(Message):
    """Call or read an attribute of each env; ``arguments`` packs (args, kwargs)."""

    request: int
    name: str
    arguments: bytes


class SetAttr(Message):
    """Set an attribute of each env; ``values`` packs one value per slot of the worker."""

    request: int
    name: str
    values: bytes


class Profile(Message):
    """Time the worker's parts from now on, or no more; the answer has the seconds by name since
    the last one."""

    request: int
    on: bool


# Worker → head: results.


class Stepped(Reply):
    """Slots were stepped or reset.

    Frames (none where the rows lie in the arena): rewards, terminated, truncated, then one array
    per array leaf of the observation space. ``objects`` packs the leaves that are no arrays,
    ``infos`` is what pack_infos makes, ``acted`` what a policy did.
    """

    arrays: tuple[ArrayHeader, ...] = ()
    objects: bytes = b""
    infos: bytes = b""
    acted: bytes = b""


class Returned(Reply):
    """Answer to Call, SetAttr and Evaluate; ``values`` packs one value per slot of the worker.
    To Profile: one value."""

    values: bytes


class Raised(Reply):
    """User code raised while the worker handled ``request``."""

    slot: int | None
    module: str
    name: str
    arguments: bytes
    text: str
    traceback: str
    action: str = ""


class Warned(Message):
    """A Python warning on the worker."""

    category: str
    text: str


# Policies on workers.


class TakePolicy(Message):
    """The policy that acts from now on (pickled, head to worker), and the layout of its weights."""

    policy_id: int
    policy: bytes
    layout: bytes


class Measured(msgspec.Struct, array_like=True, frozen=True):
    """How far the newest version is from ``held``, on rows where ``held`` acted."""

    held: int
    divergence: float
    standard_error: float
    effective_sample_size: float
    """As a share of the rows, if ``held`` acts for the newest version."""


class Announce(Message):
    """There is a new version; no bytes of it move until the worker pulls."""

    newest: int
    measured: Measured | None = None


class Collect(Message):
    """Collect ``num_steps`` steps of every slot; ``newest`` is the version the head has now."""

    request: int
    num_steps: int
    newest: int
    measured: Measured | None = None


class Cancel(Message):
    """Do not begin to collect for requests up to this one."""

    up_to_request: int


class StepWithPolicy(Message):
    """Step every slot with the actions of the policy."""

    request: int
    newest: int
    measured: Measured | None = None


class Evaluate(Message):
    """Play ``episodes[i]`` whole episodes for the worker's i-th slot, with the newest weights."""

    request: int
    episodes: tuple[int, ...]
    seed: int
    deterministic: bool
    newest: int


class Pull(Message):
    """A worker asks for the newest weights; it has this policy (0: none) and version."""

    policy_id: int
    held: int
    cause: str
    threshold: float = 0.0
    """That of its sync rule at this moment, where it has one."""
    direct: bool = False
    """From the head itself: a neighbour's shelf was of no use."""


class Weights(Message):
    """The weights of a version: one frame with the encoded vector.

    ``checksum`` is that of the decoded vector, ``base`` the version that a delta starts from.
    """

    policy_id: int
    version: int
    checksum: int
    encoding: str
    base: int = 0


class WeightsNearby(Message):
    """The weights of a version lie on the shelf of another worker of the same host."""

    policy_id: int
    version: int
    checksum: int
    pid: int
    fd: int


class Pulled(Message):
    """The weights of ``version`` have been loaded, so long after the worker asked for them."""

    version: int
    seconds: float
    shelf: int = -1
    """The descriptor of its shelf, if they lie there."""


class Collected(Reply):
    """A fragment: one frame per named array."""

    version: int
    names: tuple[str, ...]
    arrays: tuple[ArrayHeader, ...]


AnyMessage = Union[  # noqa: UP007 (msgspec reads this at run time)
    InFrameBuffer,
    Hello,
    Built,
    LaidOut,
    Leaving,
    Enrol,
    Build,
    Layout,
    Refused,
    Close,
    Reset,
    Step,
    Call,
    SetAttr,
    Profile,
    Stepped,
    Returned,
    Raised,
    Warned,
    TakePolicy,
    Announce,
    Collect,
    Cancel,
    StepWithPolicy,
    Evaluate,
    Pull,
    Weights,
    WeightsNearby,
    Pulled,
    Collected,
]
