"""A doorbell: any thread or process can ring it, and poll waits for it."""

from __future__ import annotations

import os

# An eventfd needs these eight bytes; a pipe takes anything.
_ONE = (1).to_bytes(8, "little")


class Bell:
    """One descriptor to wait on and one to ring: an eventfd for both if there is one, else a pipe.

    Args:
        hands_over: For a ringer that is about to wait: wake the waiter on the ringer's core. For a
            pipe the kernel does so, unless the waiter has just used another core.
    """

    def __init__(self, hands_over: bool = False) -> None:
        if hasattr(os, "eventfd") and not hands_over:
            self.fd = self.ring_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self.ring_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self.ring_fd, False)

    def ring(self) -> None:
        """Wake the waiter on ``fd``."""
        ring(self.ring_fd)

    def clear(self) -> None:
        """Forget the rings so far. Look for what they announced *after* this call."""
        clear(self.fd)

    def close(self) -> None:
        """Close the descriptors."""
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
