"""Run one function in a fresh Python process, and leave nothing of it behind.

Each measurement gets its own interpreter: no system inherits another's threads, heap, imports or
forked children, and a system that hangs costs its own time-out only.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection, wait
from typing import Any

THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class MeasurementError(Exception):
    """The function raised, its process ended, or it ran past its time-out."""


def in_fresh_process(function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
    """Return ``function(*arguments)`` as computed in a new process with single-threaded maths."""
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_and_send, args=(sending, function, arguments))
    process.start()
    sending.close()
    try:
        return _receive(receiving, process, timeout_s)
    finally:
        process.join(timeout=5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _run_and_send(sending: Connection, function: Callable[..., Any], arguments: tuple) -> None:
    os.setsid()  # A group of its own, so that the caller can end it with all its children.
    set_start_method(
        None, force=True
    )  # A spawned process would spawn; users start from the default.
    try:
        sending.send((function(*arguments), None))
    except Exception as error:
        sending.send((None, f"{type(error).__name__}: {error}"))
        raise


def _receive(receiving: Connection, process: Any, timeout_s: float) -> Any:
    ready = wait([receiving, process.sentinel], timeout=timeout_s)
    if not ready:
        raise MeasurementError(f"no result within {timeout_s:.0f} s")
    try:
        result, failure = receiving.recv() if receiving.poll() else (None, "process ended")
    except EOFError:
        result, failure = None, "process ended"
    if failure:
        raise MeasurementError(failure)
    return result
