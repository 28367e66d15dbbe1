"""Independent processes that share nothing but the starting gun: what a ceiling is measured in."""

from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


def in_isolated_processes(
    function: Callable[..., Iterator[Any]], arguments_by_process: Sequence[tuple[Any, ...]]
) -> Iterator[list[Any]]:
    """What ``function(*arguments)`` yields in each process, again and again.

    The processes start by fork. What the function does before it first yields (None) is its
    set-up; from then on all go on together, each time that the next results are asked for.
    """
    context = get_context("fork")
    gun = context.Barrier(len(arguments_by_process) + 1)
    processes, receivers = [], []
    try:
        for arguments in arguments_by_process:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(sending, gun, function, arguments))
            process.start()
            # Only the process itself holds this end, so that its death ends the waiting below.
            sending.close()
            processes.append(process)
            receivers.append(receiving)
        while True:
            gun.wait()
            yield [receiver.recv() for receiver in receivers]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run(
    sending: Connection,
    gun: Any,
    function: Callable[..., Iterator[Any]],
    arguments: tuple[Any, ...],
) -> None:
    try:
        results = function(*arguments)
        next(results)
        while True:
            gun.wait()
            sending.send(next(results))
    except BaseException:
        # Nobody waits for this process any more.
        gun.abort()
        raise
