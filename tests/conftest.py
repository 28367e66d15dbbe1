"""Settings for all tests."""

import pytest


def pytest_configure(config):
    # Raised as an error while Box2D's SWIG module loads, this warning crashes the interpreter.
    config.addinivalue_line(
        "filterwarnings", "ignore:builtin type .* has no __module__ attribute:DeprecationWarning"
    )


def pytest_collection_modifyitems(items):
    # Where tests run in two processes, a file stays in one of them: its tests share live workers.
    # So do all engines, which mostly wait, and leave the cores to the other process.
    for item in items:
        folder = item.path.parent.name
        group = folder if folder == "engines" else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
