"""The ledger adds up, and shows what it has in three ways."""

import pytest

from clusterenv.sync.exports import draw, summary, table
from clusterenv.sync.ledger import Ledger


def pull(ledger, host, version, held, cause="threshold", num_bytes=50):
    ledger.record_pull(host, version, held=held, cause=cause, num_bytes=num_bytes, threshold=0.1)
    ledger.count("Weights", num_bytes + 10)


@pytest.fixture
def ledger():
    ledger = Ledger()
    first = {1: "host-0.0", 3: "host-1.0"}
    for version in range(1, 11):
        ledger.record_version(version, 1000)
        if version in first:
            pull(ledger, first[version], version, 0, "first", 500)
    pull(ledger, "host-0.0", 8, 1)
    pull(ledger, "host-0.0", 9, 0, "evaluation", 500)
    ledger.count("Pull", 80)
    ledger.count("Announce", 40)
    ledger.count("Collected", 99_999)
    ledger.record_latency(0.004)
    ledger.record_measurement(
        "host-0.0",
        held=1,
        newest=8,
        divergence=0.2,
        standard_error=0.01,
        effective_sample_size=0.9,
        realised=None,
    )
    return ledger


def test_bytes_are_those_of_weights_and_all_talk_about_them(ledger):
    assert ledger.sync_bytes == 510 + 510 + 60 + 510 + 80 + 40


def test_pulling_always_counts_from_a_hosts_first_version_on(ledger):
    assert ledger.bytes_of_always_pulling == 1000 * (10 + 8)
    assert ledger.bytes_avoided == 18_000 - ledger.sync_bytes


def test_a_host_that_is_gone_would_not_have_pulled_any_more(ledger):
    before = ledger.bytes_of_always_pulling
    ledger.forget("host-0.0")
    ledger.record_version(11, 1000)
    assert ledger.bytes_of_always_pulling == before + 1000
    pull(ledger, "host-0.1", 11, 0, "first", 500)
    ledger.record_version(12, 1000)
    assert ledger.bytes_of_always_pulling == before + 4000
    assert ledger.held_by_host == {"host-1.0": 3, "host-0.1": 11}
    assert ledger.latest_by_host == {}


def test_pulls_know_their_lag_and_cause(ledger):
    assert [pull.lag for pull in ledger.pulls] == [1, 3, 7, 9]
    assert ledger.pulls_by_cause == {"first": 2, "threshold": 1, "evaluation": 1}
    assert ledger.pulls_by_host == {"host-0.0": 3, "host-1.0": 1}


def test_the_summary_leaves_evaluations_out(ledger):
    totals = summary(ledger)
    assert totals["pulls"] == 3
    assert totals["versions"] == 10
    assert totals["lag"] == 7
    assert totals["median_pull_latency_s"] == 0.004


def test_an_empty_ledger_can_be_shown_too(tmp_path):
    assert summary(Ledger())["pulls"] == 0
    assert "host" in table(Ledger())
    draw(Ledger(), tmp_path / "empty.png")


def test_the_table_names_hosts_causes_and_bytes(ledger):
    text = table(ledger)
    assert "first 1, threshold 1" in text
    assert "99,999" in text


def test_the_picture_is_drawn(ledger, tmp_path):
    draw(ledger, tmp_path / "sync.png")
    assert (tmp_path / "sync.png").stat().st_size > 10_000


def test_made_up_causes_do_not_fill_the_ledger(ledger):
    for number in range(1_000):
        pull(ledger, "host-0.0", 10, 9, f"cause {number}")
    assert len(ledger.pulls_by_cause) <= 101
    assert sum(ledger.pulls_by_cause.values()) == 1_004


# Hosts come and go.


def test_a_host_that_is_gone_would_not_have_pulled_later_versions(ledger):
    before = ledger.bytes_of_always_pulling
    ledger.forget("host-0.0")
    ledger.record_version(11, 1000)
    assert ledger.bytes_of_always_pulling == before + 1000
    ledger.forget("host-1.0")
    ledger.forget("never-there")
    ledger.record_version(12, 1000)
    assert ledger.bytes_of_always_pulling == before + 1000


def test_a_host_that_takes_its_place_counts_from_its_own_first_version_on(ledger):
    before = ledger.bytes_of_always_pulling
    ledger.forget("host-0.0")
    pull(ledger, "host-0.1", 10, 0, "first", 500)
    assert ledger.bytes_of_always_pulling == before + 1000
    ledger.record_version(11, 1000)
    assert ledger.bytes_of_always_pulling == before + 1000 + 2 * 1000


def test_what_a_host_did_stays_in_the_books_when_it_is_gone(ledger):
    ledger.forget("host-0.0")
    assert ledger.pulls_by_host["host-0.0"] == 3
    assert len(ledger.pulls) == 4


def test_an_evaluation_alone_is_no_reason_to_count_what_would_have_been_pulled():
    ledger = Ledger()
    ledger.record_version(1, 1000)
    pull(ledger, "host-0.0", 1, 0, "evaluation")
    ledger.record_version(2, 1000)
    assert ledger.bytes_of_always_pulling == 0
    assert ledger.held_by_host == {}


def test_the_version_that_each_host_holds_to_act_with_is_known(ledger):
    assert ledger.held_by_host == {"host-0.0": 8, "host-1.0": 3}


def test_the_latest_measurement_of_each_host_is_known(ledger):
    for number, host in enumerate(["host-0.0", "host-1.0", "host-0.0"]):
        ledger.record_measurement(
            host,
            held=1,
            newest=9,
            divergence=float(number),
            standard_error=0.0,
            effective_sample_size=1.0,
            realised=0.5,
        )
    latest = {host: one.divergence for host, one in ledger.latest_by_host.items()}
    assert latest == {"host-0.0": 2.0, "host-1.0": 1.0}
    assert len(ledger.measurements) == 4


# Shared memory.


def test_bytes_through_shared_memory_are_none_through_a_socket(ledger):
    before = ledger.sync_bytes, ledger.bytes_by_kind, ledger.bytes_avoided
    ledger.count_shared(1000)
    ledger.count_shared(500)
    assert ledger.shared_bytes == 1500
    assert (ledger.sync_bytes, ledger.bytes_by_kind, ledger.bytes_avoided) == before


def test_what_the_ledger_gives_out_is_the_readers_own(ledger):
    ledger.pulls.clear()
    ledger.bytes_by_kind.clear()
    ledger.held_by_host.clear()
    assert len(ledger.pulls) == 4
    assert ledger.bytes_by_kind["Collected"] == 99_999
    assert ledger.held_by_host
