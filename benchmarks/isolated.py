"""Independent processes that share nothing but the starting gun: what a ceiling is measured in."""

from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


def in_isolated_processes(
    function: Callable[..., Any], arguments_by_process: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What ``function(*arguments, barrier)`` returned in each process.

    The processes start by fork; ``barrier.wait()`` waits for all of them.
    """
    context = get_context("fork")
    barrier = context.Barrier(len(arguments_by_process))
    processes, receivers = [], []
    try:
        for arguments in arguments_by_process:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_and_send, args=(sending, function, (*arguments, barrier))
            )
            process.start()
            # Only the process itself holds this end, so that its death ends the waiting below.
            sending.close()
            processes.append(process)
            receivers.append(receiving)
        return [receiver.recv() for receiver in receivers]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run_and_send(
    sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    try:
        sending.send(function(*arguments))
    except BaseException:
        # Nobody waits for this process any more.
        arguments[-1].abort()
        raise
