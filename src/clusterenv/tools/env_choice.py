"""The env that a command is about."""

from __future__ import annotations

from clusterenv.backends.base import Backend
from clusterenv.construction import choose_backend

ADVICE = "write MODULE:ID so that the module that registers it is imported, and install it"


class UnknownEnvError(ValueError):
    """This machine has no env of that id; :data:`ADVICE` says what to do."""


def backend_of(env: str) -> Backend:
    """The backend of an id. The head needs to know the id, though workers build the env."""
    try:
        return choose_backend(env, 1, (), {})[0]
    except Exception as error:  # its module is imported, too
        raise UnknownEnvError(
            f"this machine does not know {env!r} ({type(error).__name__}: {error})"
        ) from error
