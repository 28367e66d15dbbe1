"""Starts the process that plays episodes, and passes its pictures on to a page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from clusterenv.status.channel import Run

_LONGEST_LINE = 1 << 24
_ENDS_WITHIN_S = 5.0


class Player:
    """Plays for one page at a time: the one that asked last."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, slot: int) -> asyncio.subprocess.Process:
        """A process that prints a line for each picture of this slot."""
        if self._process is not None:
            await end(self._process)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "clusterenv.tools.view.player"),
            *(self._run.id, str(self._run.pid), str(slot)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # The cores are for the run.
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            limit=_LONGEST_LINE,
        )
        return self._process

    def stop(self) -> None:
        """Stop playing."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


async def play(player: Player, slot: int) -> AsyncIterator[bytes]:
    """Pictures as server-sent events, until the page has seen enough."""
    process = await player.start(slot)
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            yield b"data: %b\n\n" % line.rstrip()
        yield b"event: over\ndata: {}\n\n"
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """End a process that nobody watches any more."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # Waited for even if the page is gone meanwhile, which cancels this.
    await asyncio.shield(asyncio.wait_for(process.wait(), _ENDS_WITHIN_S))
