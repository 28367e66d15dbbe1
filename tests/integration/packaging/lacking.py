"""Makes this process lack what another platform lacks: a simulation, not that platform.

``python lacking.py darwin script.py …`` runs a script so. What third-party packages do on such a
platform is not simulated: they are imported before anything is taken away.
"""

import importlib
import os
import runpy
import sys

# The parts of the standard library and the packages that look at sys.platform when imported.
BEFORE = [
    "asyncio",
    "cloudpickle",
    "concurrent.futures",
    "ctypes.util",
    "gymnasium.vector",
    "gymnasium.envs.classic_control",
    "importlib.metadata",
    "logging.handlers",
    "mmap",
    "msgspec.json",
    "multiprocessing.context",
    "numpy.testing",
    "platform",
    "select",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "uuid",
    "zmq.auth.thread",
]
MACOS = [
    "os.eventfd",
    "os.memfd_create",
    "os.pidfd_open",
    "os.posix_fallocate",
    "os.sched_getaffinity",
    "os.sched_setscheduler",
    "mmap.MADV_DONTFORK",
    "signal.pidfd_send_signal",
    "socket.SO_PEERCRED",
]
WINDOWS = [
    "os.fork",
    "os.geteuid",
    "os.getpgrp",
    "os.getuid",
    "os.killpg",
    "os.register_at_fork",
    "os.sched_yield",
    "os.setpgid",
    "select.poll",
    "signal.SIGKILL",
    "signal.SIGUSR1",
    "socket.AF_UNIX",
    "mmap.MAP_SHARED",
]
FUNCTIONS = {"darwin": MACOS, "win32": MACOS + WINDOWS}
MODULES = {"darwin": [], "win32": ["fcntl", "grp", "pwd", "resource", "termios", "tty"]}


def take_away(platform):
    """Leave nothing of what this platform lacks to whatever is imported from now on."""
    for name in BEFORE:
        importlib.import_module(name)
    for name in FUNCTIONS[platform]:
        module, _, attribute = name.partition(".")
        # Not every Python on Linux has all of them.
        vars(importlib.import_module(module)).pop(attribute, None)
    for name in MODULES[platform]:
        sys.modules[name] = None
    _take_away_proc()
    if platform == "win32":
        _take_away_c_library()
    sys.platform = platform


def _take_away_proc():
    def refuse(event, arguments):
        is_open = event in ("open", "os.listdir") and isinstance(arguments[0], str)
        if is_open and arguments[0].startswith("/proc"):
            raise FileNotFoundError(arguments[0])

    sys.addaudithook(refuse)
    is_folder = os.path.isdir
    os.path.isdir = lambda path: not str(path).startswith("/proc") and is_folder(path)


def _take_away_c_library():
    import ctypes

    class Library(ctypes.CDLL):
        def __init__(self, name, *args, **kwargs):
            if name is None:
                raise TypeError("bad argument type for built-in operation")  # as on Windows
            super().__init__(name, *args, **kwargs)

    ctypes.CDLL = Library


if __name__ == "__main__":
    take_away(sys.argv[1])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
