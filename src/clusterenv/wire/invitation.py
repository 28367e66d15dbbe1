"""What a worker must be given in secret to join a run, and nothing else."""

from __future__ import annotations

import msgspec

from clusterenv.errors import ProtocolError

ENVIRONMENT_VARIABLE = "CLUSTERENV_INVITATION"
"""Where a worker looks for its invitation before it reads standard input; read once, deleted."""
TICKET = "applicant"
"""The name in an invitation that is good for any place: the head says which."""


class SharedDescriptors(msgspec.Struct, frozen=True):
    """Descriptors that a spawned worker inherits."""

    mailbox: int
    frames: int
    arena: int
    doorbell: int
    head_bell: int


class Invitation(msgspec.Struct, frozen=True):
    """Where the head is, and the keys of this one worker."""

    worker: str
    address: str
    server_key: str
    public_key: str
    secret_key: str
    lease_s: float
    step_timeout_s: float
    startup_timeout_s: float
    shared: SharedDescriptors | None = None

    def __repr__(self) -> str:
        # Never the keys: a repr ends up in logs.
        return f"Invitation({self.worker} to {self.address})"

    @property
    def is_ticket(self) -> bool:
        """Whether it only serves to ask the head for an invitation of one's own."""
        return self.worker == TICKET

    def at(self, address: str) -> Invitation:
        """The same, to a head at another address."""
        return msgspec.structs.replace(self, address=address)

    def to_bytes(self) -> bytes:
        """One line of text, fit for a pipe, a file or an environment variable."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Invitation:
        """Read what :meth:`to_bytes` wrote."""
        try:
            return msgspec.json.decode(data, type=Invitation)
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from error
