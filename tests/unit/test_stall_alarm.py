"""The alarm rings once, when the divergence is flat while the lag grows, and only then."""

from clusterenv.head.stall_alarm import StallAlarm


def rings(divergences, held=1):
    alarm = StallAlarm()
    return [n for n, d in enumerate(divergences) if alarm.note("host-0.0", held, d)]


def test_a_flat_divergence_rings_once():
    assert len(rings([0.02] * 100)) == 1


def test_a_growing_divergence_does_not():
    assert rings([0.001 * n for n in range(1, 60)]) == []


def test_a_short_wait_does_not():
    assert rings([0.02] * 20) == []


def test_weights_that_do_not_change_anything_do_not():
    assert rings([0.0] * 100) == []


def test_a_pull_begins_anew():
    alarm = StallAlarm()
    assert not any(alarm.note("host-0.0", held, 0.02) for held in range(5) for _ in range(20))


def test_hosts_are_looked_at_apart():
    alarm, hosts = StallAlarm(), [f"host-{place}.0" for place in range(3)]
    assert not any(alarm.note(host, 1, 0.02) for _ in range(20) for host in hosts)
