"""What a thread of this process is doing, and whether a debugger has stopped it there."""

from __future__ import annotations

import bdb
import faulthandler
import tempfile

# VS Code's and PyCharm's, which notebooks use as well.
_DEBUGGERS = (f'"{bdb.__file__}"', "pydevd")


def stack_of(ident: int | None) -> str:
    """The calls of a thread, the last one first, in the format of faulthandler; "" if it is gone.

    Written by faulthandler and not by following frames, which is unsafe while the thread runs.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().decode(errors="replace").split("\n\n")
    heading = f"hread 0x{ident or 0:016x} "
    found = [thread for thread in threads if heading in thread.partition("\n")[0]]
    return found[0].partition("\n")[2] if found else ""


def is_in_debugger(ident: int | None) -> bool:
    """Whether a thread stands in a debugger."""
    stack = stack_of(ident)
    return any(debugger in stack for debugger in _DEBUGGERS)
