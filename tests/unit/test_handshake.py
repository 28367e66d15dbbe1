"""Who may join is decided from what they say, and refusals say why."""

from clusterenv.wire.handshake import refusal
from clusterenv.wire.messages import PROTOCOL_VERSION, Hello
from clusterenv.wire.versions import versions


def hello(protocol=PROTOCOL_VERSION, **other_versions):
    return Hello(protocol, {**versions(), **other_versions}, "node7", 4711, 8)


def reason(message):
    return refusal(versions(), message)


def test_a_host_with_the_same_versions_may_join():
    assert reason(hello()) == ""


def test_another_protocol_is_refused_with_both_numbers():
    assert reason(hello(PROTOCOL_VERSION + 1)) == (
        f"protocol {PROTOCOL_VERSION + 1} instead of {PROTOCOL_VERSION}"
    )


def test_another_version_is_refused_with_both_versions():
    text = reason(hello(python="2.7.18"))
    assert text.startswith(f"python 2.7.18 on the host, {versions()['python']} on the head; ")


def test_a_refusal_says_what_to_do():
    text = reason(hello(python="2.7.18", numpy="0.9"))
    python = ".".join(versions()["python"].split(".")[:2])
    assert text.endswith(
        f"; start hosts with Python {python}, and run "
        f"`python -m pip install numpy=={versions()['numpy']}` there"
    )


def test_all_that_is_wrong_is_said_at_once():
    text = reason(hello(PROTOCOL_VERSION + 1, python="2.7.18", numpy="0.9"))
    assert [part.split()[0] for part in text.split("; ")] == [
        "protocol",
        "python",
        "numpy",
        "start",
    ]


def test_a_host_without_versions_is_refused():
    text = reason(Hello(PROTOCOL_VERSION, {}, "node7", 4711, 8))
    assert "python missing on the host" in text
