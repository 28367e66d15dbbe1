"""The key file of a run: for its owner only, whole, and gone at the end."""

import pytest

from clusterenv.launchers.attach import AttachLauncher
from clusterenv.launchers.base import Order

ORDERS = [Order("host-0.0", b"the ticket"), Order("host-1.0", b"the ticket")]


@pytest.fixture
def launcher(tmp_path):
    return AttachLauncher(tmp_path / "run.key", hosts=2)


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


def test_the_key_file_goes_with_the_last_host(launcher, tmp_path):
    launcher.start(ORDERS)
    launcher.stop(["host-0.0"])
    assert launcher.key_file.exists()
    launcher.stop(["host-1.0"])
    assert list(tmp_path.iterdir()) == []


def test_the_key_file_of_a_later_run_stays(launcher):
    launcher.start(ORDERS)
    later = AttachLauncher(launcher.key_file)
    later.start([Order("host-0.0", b"another ticket")])
    launcher.stop(["host-0.0", "host-1.0"])
    assert launcher.key_file.read_bytes() == b"another ticket"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        AttachLauncher(tmp_path / "nowhere" / "run.key").start(ORDERS)


def test_nobody_but_the_connection_knows_how_hosts_are(launcher):
    launcher.start(ORDERS)
    assert (launcher.num_hosts, launcher.workers_per_host) == (2, None)
    assert set(launcher.status()) == {"host-0.0", "host-1.0"}
    assert not launcher.status()["host-0.0"].ended
    launcher.enrolled("host-0.0", "")


def test_a_run_waits_for_one_host_at_least(tmp_path):
    with pytest.raises(ValueError, match="hosts=0 must be at least 1; say how many hosts"):
        AttachLauncher(tmp_path / "run.key", hosts=0)
