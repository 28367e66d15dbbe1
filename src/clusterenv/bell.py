"""A doorbell: rung from any thread or process, waited for with poll."""

from __future__ import annotations

import os

# What an eventfd wants; a pipe takes anything.
_ONE = (1).to_bytes(8, "little")


class Bell:
    """One descriptor to wait on, one to ring: the same eventfd where there is one, else a pipe.

    Args:
        hands_over: Who rings is about to wait, and who waits had best go on in its place, on its
            core: for a pipe the kernel does that, unless who waits has just used another core.
    """

    def __init__(self, hands_over: bool = False) -> None:
        if hasattr(os, "eventfd") and not hands_over:
            self.fd = self.ring_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self.ring_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self.ring_fd, False)

    def ring(self) -> None:
        """Wake whoever waits on ``fd``."""
        ring(self.ring_fd)

    def clear(self) -> None:
        """Forget the rings so far. Look for what they announced *after* this call."""
        clear(self.fd)

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in {self.fd, self.ring_fd}:
            os.close(fd)


def ring(fd: int) -> None:
    """Ring the bell behind ``fd``, which may be inherited from another process."""
    try:
        os.write(fd, _ONE)
    except BlockingIOError:
        pass  # a full pipe or counter: it is ringing already


def clear(fd: int) -> None:
    """Forget the rings so far of the bell behind ``fd``."""
    try:
        os.read(fd, 1 << 16)
    except BlockingIOError:
        pass  # nobody rang
