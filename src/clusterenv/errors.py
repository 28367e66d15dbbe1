"""Every exception that ClusterEnv raises itself.

::

    ClusterEnvError
    ├── StartupError         RuntimeError; the workers did not come up
    ├── WorkerLostError      RuntimeError; a worker is gone and may not or cannot be replaced
    ├── RemoteError          RuntimeError; remote code raised a type that the head does not know
    ├── CannotPickleError    TypeError; something that must travel to the workers cannot
    ├── UntrustedValueError  TypeError; a worker wanted to send what plain data cannot express
    └── ProtocolError        a peer said something that the wire protocol does not allow

An exception raised by an environment keeps its own type where the head knows that type; the
remote traceback is its ``__cause__``. Misuse of the vector API raises Gymnasium's own exceptions
(``ClosedEnvironmentError``, ``AlreadyPendingCallError``, ``NoAsyncCallError``, ``ResetNeeded``).
"""

_LONGEST_TEXT = 1_000


class ClusterEnvError(Exception):
    """Base of every exception that ClusterEnv raises itself."""


class StartupError(ClusterEnvError, RuntimeError):
    """The workers did not come up.

    Attributes:
        refused: Why the head refused a host, if it did.
        unreached: The address that hosts have not reached, if the head was waiting for them.
    """

    def __init__(self, text: str, *, refused: str = "", unreached: str = "") -> None:
        super().__init__(text)
        self.refused, self.unreached = refused, unreached


class WorkerLostError(ClusterEnvError, RuntimeError):
    """A worker is gone and may not, or could not, be replaced."""


class RemoteError(ClusterEnvError, RuntimeError):
    """Code on a worker raised an exception whose type the head does not know."""


class CannotPickleError(ClusterEnvError, TypeError):
    """Something that must travel to the workers cannot be pickled."""


class UntrustedValueError(ClusterEnvError, TypeError):
    """A worker wanted to send an object that plain data cannot express."""


class ProtocolError(ClusterEnvError):
    """A peer said something that the wire protocol does not allow.

    Its text is short, however much of the peer's message is in it.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(f"{text:.{_LONGEST_TEXT}}")

    @staticmethod
    def of(error: BaseException) -> "ProtocolError":
        """``error``, which something from a peer caused, as a ProtocolError."""
        if isinstance(error, ProtocolError):
            return error
        try:
            text = f"{type(error).__name__}: {error!s:.300}"
        except Exception:  # a number in it may be too large to print
            text = type(error).__name__
        return ProtocolError(text)


class RemoteTraceback(Exception):  # noqa: N818 (it is shown, never raised)
    """Carries a worker's traceback as text; shown as the cause of the exception raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
