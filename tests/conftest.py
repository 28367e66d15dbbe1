"""Settings for all tests."""

from pathlib import Path

import pytest


def pytest_configure(config):
    # Raised as an error while Box2D's SWIG module loads, this warning crashes the interpreter.
    config.addinivalue_line(
        "filterwarnings", "ignore:builtin type .* has no __module__ attribute:DeprecationWarning"
    )


def pytest_collection_modifyitems(items):
    """What is known to be missing is not run, and counted as xfailed."""
    lines = (Path(__file__).parent / "known_gaps.txt").read_text().splitlines()
    gaps = {line for line in lines if line and not line.startswith("#")}
    for item in items:
        if item.nodeid.split("[")[0] in gaps:
            item.add_marker(pytest.mark.xfail(reason="see tests/known_gaps.txt", run=False))
