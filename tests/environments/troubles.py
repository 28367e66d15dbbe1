"""What can go wrong in an env: callables for `walks.Troubled`."""

import ctypes
import faulthandler
import logging
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym

FOREVER_S = 600.0


@dataclass(frozen=True)
class Gate:
    """Trouble that lasts until the file at `path` exists."""

    path: str

    def __call__(self):
        deadline = time.monotonic() + FOREVER_S
        while not Path(self.path).exists() and time.monotonic() < deadline:
            time.sleep(0.002)


@dataclass(frozen=True)
class Nap:
    """Trouble that lasts so long."""

    seconds: float

    def __call__(self):
        time.sleep(self.seconds)


@dataclass(frozen=True)
class OnlyOnce:
    """Trouble that a replacement does not meet again: the file at `path` remembers."""

    path: str
    trouble: object

    def __call__(self):
        if not Path(self.path).exists():
            Path(self.path).touch()
            self.trouble()


@dataclass(frozen=True)
class AllButOnce:
    """Trouble that only a replacement meets: the first time only makes the file at `path`."""

    path: str
    trouble: object

    def __call__(self):
        if Path(self.path).exists():
            self.trouble()
        Path(self.path).touch()


@dataclass(frozen=True)
class OnlyThe:
    """Trouble that comes the `number`-th time alone: the file at `path` counts."""

    number: int
    path: str
    trouble: object

    def __call__(self):
        with open(self.path, "a") as file:
            file.write(".")
        if Path(self.path).stat().st_size == self.number:
            self.trouble()


class WalkError(Exception):
    """An exception of the env's own, which the head can build again."""


class NoteError(Exception):
    """Its constructor takes other arguments than `args` says."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


class TableError(Exception):
    """Its constructor raises something odd when it is given `args` again."""

    def __init__(self, number):
        super().__init__({7: "the seventh thing broke"}[number])


class MuteError(Exception):
    """Cannot be turned into text."""

    def __str__(self):
        raise AttributeError("no text was prepared")


class OddWarning(UserWarning):
    """A kind of warning that only the env's module knows."""


def raise_value_error():
    raise ValueError("the walk was blocked")


def raise_walk_error():
    raise WalkError("lost the way", 7)


def raise_note_error():
    raise NoteError(code=5)


def raise_table_error():
    raise TableError(7)


def raise_mute_error():
    raise MuteError


def open_missing_file():
    open("/nowhere/map.txt").close()


def raise_chained():
    try:
        raise_value_error()
    except ValueError as error:
        raise KeyError("map") from error


def segfault():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler._sigsegv()


def exit_3():
    os._exit(3)


def print_then_exit():
    print("the ground is shaking")
    os._exit(3)


def system_exit():
    sys.exit(4)


def sleep_forever():
    time.sleep(FOREVER_S)


def sleep_a_moment():
    time.sleep(0.02)


def sleep_a_while():
    time.sleep(2.5)


def hold_the_gil():
    ctypes.PyDLL(None).sleep(int(FOREVER_S))


def start_child():
    subprocess.Popen(["sleep", str(int(FOREVER_S))], start_new_session=False)


def start_child_elsewhere():
    """In a session of its own, which no signal to the worker's process group reaches."""
    subprocess.Popen(["sleep", str(int(FOREVER_S))], start_new_session=True)


def start_daemon():
    """A grandchild that is nobody's: its parent has ended."""
    command = f"setsid sleep {int(FOREVER_S)} > /dev/null 2>&1 &"
    subprocess.run(["sh", "-c", command], check=True)


def become_daemon():
    """What runs on is another process, in a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()


def warn_user():
    warnings.warn("slippery", UserWarning, stacklevel=2)


def warn_runtime():
    warnings.warn("slippery", RuntimeWarning, stacklevel=2)


def warn_oddly():
    warnings.warn("slippery", OddWarning, stacklevel=2)


def warn_by_gymnasium():
    gym.logger.warn("slippery")


def warn_and_raise():
    warn_user()
    raise_value_error()


def print_a_line():
    print("a step was made")


def log_a_line():
    logging.warning("a step was logged")
