"""Independent processes that share nothing but the starting gun: what a ceiling is measured in."""

from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any


def in_isolated_processes(
    function: Callable[..., Any], arguments_by_process: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What ``function(*arguments, barrier)`` returned in each process, in no particular order.

    The processes start by fork; ``barrier.wait()`` waits for all of them.
    """
    context = get_context("fork")
    barrier, results = context.Barrier(len(arguments_by_process)), context.SimpleQueue()
    processes = [
        context.Process(target=_run_and_put, args=(results, function, (*arguments, barrier)))
        for arguments in arguments_by_process
    ]
    for process in processes:
        process.start()
    outcomes = [results.get() for _ in processes]
    for process in processes:
        process.join()
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        raise failures[0]
    return outcomes


def _run_and_put(results: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        results.put(function(*arguments))
    except Exception as error:
        arguments[-1].abort()
        results.put(error)
        raise
