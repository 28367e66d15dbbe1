"""The key file of a run: for its owner only, whole, and gone at the end."""

import pytest

from clusterenv.launchers.attach import AttachLauncher
from clusterenv.launchers.base import Order

ORDERS = [Order("worker-0.0", b"the ticket"), Order("worker-1.0", b"the ticket")]


@pytest.fixture
def launcher(tmp_path):
    return AttachLauncher(tmp_path / "run.key")


def test_the_key_file_is_for_its_owner_only(launcher):
    launcher.start(ORDERS)
    assert launcher.key_file.read_bytes() == b"the ticket"
    assert launcher.key_file.stat().st_mode & 0o777 == 0o600


def test_an_old_key_file_is_replaced_not_rewritten(launcher):
    launcher.key_file.write_bytes(b"an older run's")
    launcher.key_file.chmod(0o644)
    with launcher.key_file.open("rb") as opened_before:
        launcher.start(ORDERS)
        assert opened_before.read() == b"an older run's"
    assert launcher.key_file.stat().st_mode & 0o777 == 0o600


def test_the_key_file_goes_with_the_last_worker(launcher, tmp_path):
    launcher.start(ORDERS)
    launcher.stop(["worker-0.0"])
    assert launcher.key_file.exists()
    launcher.stop(["worker-1.0"])
    assert list(tmp_path.iterdir()) == []


def test_the_key_file_of_a_later_run_stays(launcher):
    launcher.start(ORDERS)
    later = AttachLauncher(launcher.key_file)
    later.start([Order("worker-0.0", b"another ticket")])
    launcher.stop(["worker-0.0", "worker-1.0"])
    assert launcher.key_file.read_bytes() == b"another ticket"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        AttachLauncher(tmp_path / "nowhere" / "run.key").start(ORDERS)
