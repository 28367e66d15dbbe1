"""For what runs on two checkouts of this package: its public names, wherever a side has them."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import clusterenv


def public(name: str, home: str) -> Any:
    """A public name: at the top of the package where it is there, else in its module ``home``."""
    if name in clusterenv.__all__:
        return getattr(clusterenv, name)
    return getattr(import_module(f"clusterenv.{home}"), name)


def assert_package_is_of_this_side() -> None:
    """RuntimeError if ``clusterenv`` was imported from anywhere but the first of PYTHONPATH."""
    source = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    if not Path(clusterenv.__file__).resolve().is_relative_to(source.resolve()):
        raise RuntimeError(f"clusterenv came from {clusterenv.__file__}, not from {source}")
