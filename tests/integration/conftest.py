"""Settings for the tests of faults."""

import tempfile
import uuid

import pytest

from clusterenv.launchers.local import LocalLauncher
from tests.integration.polling import MARK, marked_processes


@pytest.fixture(autouse=True)
def _plain_python(monkeypatch):
    """Settings of whoever runs the tests must not help the workers."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def own_tmp(tmp_path, monkeypatch):
    """A temporary directory that nobody else uses, as this process's default."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class Watched:
    """A launcher whose processes, and their children, can be told from all others."""

    def __init__(self):
        self._mark = uuid.uuid4().hex
        self.environment = {MARK: self._mark}
        self.launcher = LocalLauncher(environment=self.environment)

    def processes(self):
        return marked_processes(self._mark)


@pytest.fixture
def watched():
    return Watched()
