"""What a worker says of itself first."""

from __future__ import annotations

import os
import socket

from clusterenv.wire.messages import PROTOCOL_VERSION, Hello
from clusterenv.wire.shelf import neighbourhood
from clusterenv.wire.versions import versions


def hello() -> Hello:
    """Who this worker is and what it runs."""
    return Hello(PROTOCOL_VERSION, versions(), socket.gethostname(), os.getpid(), neighbourhood())
