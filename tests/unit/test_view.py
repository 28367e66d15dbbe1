"""What `view` decides: who may see the page, what it draws, and what Prometheus reads."""

import asyncio
import json
import pathlib
import re

import msgspec
import pytest

from clusterenv.status.channel import Run
from clusterenv.status.run_status import EpisodeSummary, LossSummary, WarningSummary
from clusterenv.status.showing import Showing, decode, encode, name_for, slot_in
from clusterenv.tools.run_table import run_table
from clusterenv.tools.view.access import Access, bearer_in, is_loopback, name_in
from clusterenv.tools.view.history import _MOST_EVENTS, _MOST_POINTS, History
from tests.unit.test_top import host, row, status, worker

# Access.

ACCESS = Access("0123456789abcdef", ["node7"], 8000)


@pytest.mark.parametrize("called", ["localhost:9", "127.0.0.1", "[::1]:8000", "NODE7:80", "node7"])
def test_the_page_may_be_called_by_names_of_this_machine_at_any_port(called):
    assert ACCESS.knows(called)


@pytest.mark.parametrize(
    "called", ["", "evil.example", "127.0.0.1.evil.example:8000", "node70", ":"]
)
def test_a_name_that_somebody_else_lets_lead_here_is_refused(called):
    assert not ACCESS.knows(called)


@pytest.mark.parametrize(
    "given", [(), (None,), ("",), ("0123456789abcde",), ("\udcff",), ("x", "y")]
)
def test_without_the_token_nobody_is_admitted(given):
    assert not ACCESS.admits(*given)


def test_the_token_may_come_in_any_of_the_places():
    assert ACCESS.admits(None, "wrong", ACCESS.token)
    assert bearer_in(f"Bearer {ACCESS.token}") == ACCESS.token
    assert bearer_in("Basic abc") is None


def test_the_address_has_the_token_and_a_name_that_leads_here():
    assert ACCESS.url("127.0.0.1") == "http://127.0.0.1:8000/?token=0123456789abcdef"
    assert ACCESS.url("0.0.0.0").startswith("http://127.0.0.1:8000/")
    assert ACCESS.url("::1").startswith("http://[::1]:8000/")
    assert [name_in(one) for one in ("a:1", "[::1]", "a")] == ["a", "::1", "a"]
    assert [is_loopback(one) for one in ("127.0.0.9", "0.0.0.0", "localhost")] == [
        True,
        False,
        True,
    ]


# History.


def history(*snapshots):
    made = History()
    for one in snapshots:
        made.add(one)
    return made


def test_view_and_top_agree_about_the_same_run():
    before = status(host(), host("host-1.0", rows=50))
    now = status(host(rows=3000, held=4), host("host-1.0", rows=150), uptime_s=12.0, version=6)
    made = history(before)
    news, table = made.add(now), run_table(before, now)
    assert [row(table, n)["steps/s"] for n in (0, 1)] == ["1k", "50"]
    assert news.rates == {"host-0.0": 1000.0, "host-1.0": 50.0}
    assert news.point.steps_per_s == 1050.0
    assert news.point.lag == max(int(row(table, n)["lag"]) for n in (0, 1))
    assert news.point.divergence == 0.012


def test_rates_are_those_of_the_last_ten_seconds_since_fragments_come_in_one_piece():
    made = History()
    # A fragment of 2000 rows every four seconds.
    snapshots = [status(host(rows=2000 * (s // 4)), uptime_s=float(s)) for s in range(60)]
    points = [made.add(one).point.steps_per_s for one in snapshots]
    assert all(400 <= rate <= 600 for rate in points[12:])


def test_of_losses_warnings_and_episodes_the_page_is_told_once():
    loss = LossSummary(9.0, "host-0.0", "worker-1.0", 2, 3, "exit code 3")
    warned = WarningSummary(9.5, "boom\nthe end of its log")
    episode = EpisodeSummary(9.7, 3, 12.0, 8)
    first = status(host(), losses=(loss,), warnings=(warned,), recent_episodes=(episode,))
    made = History()
    told = made.add(first)
    assert [event.text for event in told.events] == [
        "worker-1.0 of host-0.0: exit code 3, in slot 3",
        "boom\nthe end of its log",
    ]
    assert told.episodes == (episode,)
    assert told.status.losses == told.status.warnings == told.status.recent_episodes == ()
    again = made.add(msgspec.structs.replace(first, uptime_s=11.0))
    assert again.events == again.episodes == ()
    assert len(made.story.events) == 2
    assert made.story.latest.episodes == (episode,)


def test_a_replacement_is_told_when_it_is_ready():
    def seen(*workers, name="host-0.0", **changes):
        return status(host(name, workers, **changes))

    made = history(seen(worker(), worker("worker-1.0")))
    assert made.add(seen(worker(), worker("worker-1.1", "joining"))).events == ()
    (event,) = made.add(seen(worker(), worker("worker-1.1"))).events
    assert (event.kind, event.text) == ("replaced", "worker-1.1 of host-0 is ready")
    assert made.add(seen(worker(), worker("worker-1.1"))).events == ()
    (event,) = made.add(seen(worker(), worker("worker-1.0"), name="host-0.1")).events
    assert event.text == "host-0.1 is ready"


def test_the_history_of_a_long_run_is_bounded_and_spans_all_of_it():
    made = History()
    for second in range(3 * _MOST_POINTS):
        losses = (LossSummary(second - 0.5, "host-0.0", "", 2, None, "gone"),)
        made.add(status(host(), uptime_s=float(second), losses=losses))
    times = [point.time_s for point in made.story.points]
    assert len(times) <= _MOST_POINTS
    assert times[0] <= 2.0
    assert times[-1] == 3 * _MOST_POINTS - 1
    assert times == sorted(set(times))
    assert len(made.story.events) == _MOST_EVENTS


def test_where_nothing_is_measured_nothing_is_drawn():
    news = History().add(status(host(held=None, divergence=None)))
    point = news.point
    assert point.lag is point.divergence is point.threshold is point.mean_reward is None


# The status for scripts.


def test_the_status_says_whether_the_run_has_ended():
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from clusterenv.tools.view.server import Feed, Pages

    feed = Feed(Run("abc123", 6), status(host()), 1.0)

    snapshot = json.loads(msgspec.json.encode(status(host())))
    for has_ended in (False, True):
        feed.history.has_ended = has_ended
        answer = asyncio.run(Pages(feed).status(None))
        assert json.loads(answer.body) == {"has_ended": has_ended, **snapshot}


# What it takes to play.


def test_what_is_wanted_is_in_the_name_of_the_socket():
    assert slot_in(name_for(12).encode()) == 12
    for other in ("", b"", b"\0clusterenv-show/x/0", b"\0clusterenv-show/-1/" + b"0" * 16):
        assert slot_in(other) is None


def test_a_showing_arrives_as_it_is():
    showing = Showing(3, 7, b"backend", b"policy", b"layout", ("/a",), "/b")
    assert decode(b"".join(encode(showing, bytearray(b"weights")))) == (showing, b"weights")
    for damaged in (b"", b"\1\0\0\0\0\0\0\0\xff"):
        with pytest.raises(msgspec.MsgspecError):
            decode(damaged)


# Metrics.


def test_prometheus_reads_what_the_snapshot_says():
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from clusterenv.tools.view.metrics import exposition

    now = status(
        host(workers=[worker(), worker("worker-1.0", "joining")], losses=2, threshold=0.1),
        host("host-1.3", held=None, divergence=None),
        env="CartPole-v1",
        bytes_by_kind={"Weights": 77},
        losses_by_reason={'a "quoted"\nreason': 2},
        recent_episodes=(EpisodeSummary(1.0, 0, 10.0, 4), EpisodeSummary(1.0, 0, 20.0, 6)),
    )
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(now, False).decode())
        for sample in family.samples
    }
    assert samples["clusterenv_up",] == 1
    assert samples["clusterenv_run_info", "CartPole-v1", "here", "abc123"] == 1
    assert samples["clusterenv_steps_total", "host-0"] == 1000
    assert samples["clusterenv_host_lag", "host-0"] == 2
    assert ("clusterenv_host_lag", "host-1") not in samples
    assert samples["clusterenv_host_threshold", "host-0"] == 0.1
    assert samples["clusterenv_workers", "host-0", "joining"] == 1
    assert samples["clusterenv_pulls_total", "first"] == 2
    assert samples["clusterenv_socket_bytes_total", "Weights"] == 77
    assert samples["clusterenv_losses_total", 'a "quoted"\nreason'] == 2
    assert samples["clusterenv_episode_return",] == 15.0
    assert b"clusterenv_up 0.0" in exposition(now, True)


def test_the_dashboard_and_the_page_about_it_name_metrics_that_exist():
    pytest.importorskip("prometheus_client")
    from clusterenv.tools.view.metrics import exposition

    docs = pathlib.Path(__file__).parents[2] / "docs"
    episodes = (EpisodeSummary(1.0, 0, 10.0, 4),)
    counts = {"bytes_by_kind": {"Weights": 1}, "losses_by_reason": {"gone": 1}}
    now = status(host(workers=[worker()], threshold=0.1), recent_episodes=episodes, **counts)
    known = set(re.findall(r"^(clusterenv_\w+)", exposition(now, False).decode(), re.MULTILINE))
    dashboard = json.loads((docs / "grafana.json").read_text())
    asked = " ".join(t["expr"] for panel in dashboard["panels"] for t in panel["targets"])
    page = (docs / "view.md").read_text()
    assert set(re.findall(r"clusterenv_\w+", asked)) <= known
    assert set(re.findall(r"`(clusterenv_\w+)`", page)) <= known
