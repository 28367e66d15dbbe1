"""Messages ⇄ bytes: a struct as a msgpack header, with arrays beside it."""

from __future__ import annotations

from typing import Any

import msgspec

from clusterenv.arrays import Buffer
from clusterenv.errors import ProtocolError

_encoder = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages."""


def encode(message: Message) -> bytes:
    """The bytes of ``message``."""
    return _encoder.encode(message)


class Decoder:
    """Reads the messages of one protocol, and nothing else."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kinds)

    def decode(self, data: Buffer) -> Any:
        """The message in ``data``; ProtocolError if it is not one."""
        try:
            return self._decoder.decode(data)
        # Text that is not UTF-8, and endless nesting, have errors of their own.
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"not a message of this protocol: {error!s:.300}") from error
