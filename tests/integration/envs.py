"""A walk on which nothing goes wrong, one on which something does, and what can go wrong."""

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
import numpy as np
from gymnasium.spaces import Box

FOREVER_S = 600.0


class Walk(gym.Env):
    """A seeded random walk that ends after `length` steps."""

    observation_space = Box(-1e6, 1e6, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, length=1000):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        self.position = self.np_random.random(2)
        return self.position.copy(), {"start": float(self.position[0])}

    def step(self, action):
        self.age += 1
        self.position = self.position + action * self.np_random.random(2)
        terminated = self.age >= self.length
        return self.position.copy(), float(self.position.sum()), terminated, False, self._info()

    def _info(self):
        return {"age": self.age}

    def poke(self):
        return self.age

    def pid(self):
        return os.getpid()


class Troubled(Walk):
    """A walk that calls `trouble()` in one of its verbs: every time, or only the `at`-th time.

    It makes the file `sign` just before, so that a test knows how far it has come.
    """

    def __init__(self, trouble, verb="step", at=None, sign=None, length=1000):
        super().__init__(length)
        self.trouble, self.verb, self.at, self.sign = trouble, verb, at, sign
        self.calls = 0
        self._maybe("make")

    def reset(self, *, seed=None, options=None):
        self._maybe("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._maybe("step")
        return super().step(action)

    def poke(self):
        self._maybe("poke")
        return super().poke()

    def close(self):
        self._maybe("close")

    @property
    def mood(self):
        return "calm"

    @mood.setter
    def mood(self, value):
        self._maybe("mood")

    def _maybe(self, verb):
        if verb != self.verb:
            return
        self.calls += 1
        if self.at in (None, self.calls):
            if self.sign is not None:
                Path(self.sign).touch()
            self.trouble()


@dataclass(frozen=True)
class Gate:
    """Trouble that lasts until the file at `path` exists."""

    path: str

    def __call__(self):
        deadline = time.monotonic() + FOREVER_S
        while not Path(self.path).exists() and time.monotonic() < deadline:
            time.sleep(0.002)


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


class WalkError(Exception):
    """An exception of the env's own, which the head can build again."""


class NoteError(Exception):
    """Its constructor takes other arguments than `args` says."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


class TableError(Exception):
    """Its constructor raises something odd when it is given `args` again."""

    TEXTS = {7: "the seventh thing broke"}

    def __init__(self, number):
        super().__init__(self.TEXTS[number])


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


def sleep_a_while():
    time.sleep(2.5)


def hold_the_gil():
    ctypes.PyDLL(None).sleep(int(FOREVER_S))


def start_child():
    subprocess.Popen(["sleep", str(int(FOREVER_S))], start_new_session=False)


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


def print_a_line():
    print("a step was made")


def log_a_line():
    logging.warning("a step was logged")


class Heavy(Walk):
    """A walk with observations and infos of several megabytes."""

    observation_space = Box(0, 255, (1024, 1024), np.uint8)

    def __init__(self, info_bytes):
        super().__init__(length=3)
        self.info_bytes = info_bytes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._image(), self._info()

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return self._image(), reward, terminated, truncated, info

    def _image(self):
        return self.np_random.integers(0, 256, (1024, 1024), np.uint8)

    def _info(self):
        return {"blob": self.np_random.integers(0, 256, self.info_bytes, np.uint8)}
