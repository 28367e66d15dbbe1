"""What a host must be given in secret to join a run, and nothing else."""

from __future__ import annotations

import msgspec

from clusterenv.errors import ProtocolError
from clusterenv.host.plan import WorkerLimits, WorkerSetup

ENVIRONMENT_VARIABLE = "CLUSTERENV_INVITATION"
"""Where a host looks for its invitation before standard input; read once, then deleted."""
TICKET = "applicant"
"""The name in an invitation that is good for any place; the head decides which."""

# As ZeroMQ writes the keys of CURVE.
_KEY_CHARACTERS = 40


class Invitation(msgspec.Struct, frozen=True):
    """Where the head is, this host's keys, and what it needs to start workers at once."""

    host: str
    address: str
    server_key: str
    public_key: str
    secret_key: str
    lease_s: float
    limits: WorkerLimits
    workers: int | None = None
    """How many workers to run; None for one per core."""
    environment: dict[str, str] = {}
    """Environment variables for the host and its workers."""
    setup: WorkerSetup = WorkerSetup()

    def __repr__(self) -> str:
        # Never the keys: a repr may end up in logs.
        return f"Invitation({self.host} to {self.address})"

    @property
    def is_ticket(self) -> bool:
        """Whether it only serves to ask the head for an invitation of the host's own."""
        return self.host == TICKET

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
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"{error!s:.300}") from error

    def check_keys(self) -> None:
        """ProtocolError for a malformed key, which ZeroMQ would refuse without saying so."""
        for key in (self.server_key, self.public_key, self.secret_key):
            if len(key) != _KEY_CHARACTERS or not key.isascii() or not key.isprintable():
                raise ProtocolError(
                    f"one of its keys is not {_KEY_CHARACTERS} printable ASCII characters"
                )
