"""Who may join is decided from what they say, and refusals say why."""

import pytest

from clusterenv.head.reception import Reception
from clusterenv.wire.messages import (
    PROTOCOL_VERSION,
    Build,
    Built,
    Hello,
    LaidOut,
    Layout,
    Refused,
    Stepped,
)
from clusterenv.wire.versions import versions


def build(*slots):
    return Build(slots=slots, backend=b"backend", autoreset_mode="NextStep", sync_rule=b"rule")


BUILD = build(0, 1)
LAYOUT = Layout(2, b"observations", b"actions")


def hello(protocol=PROTOCOL_VERSION, **other_versions):
    return Hello(protocol, {**versions(), **other_versions}, "node7", 4711)


@pytest.fixture
def reception():
    reception = Reception()
    reception.expect("worker-0.0", BUILD)
    return reception


def reason(reception, message, worker="worker-0.0"):
    ((refused, frames),) = reception.answer(worker, message)
    assert isinstance(refused, Refused)
    assert not frames
    return refused.reason


def test_an_expected_worker_is_told_what_to_build(reception):
    assert reception.answer("worker-0.0", hello()) == [(BUILD, ())]


def test_each_worker_is_told_its_own(reception):
    other = build(2)
    reception.expect("worker-1.0", other)
    assert reception.answer("worker-1.0", hello()) == [(other, ())]


def test_a_worker_that_nobody_expects_is_refused(reception):
    assert reason(reception, hello(), "worker-9.0") == "nobody expects this worker"


def test_a_worker_that_was_given_up_is_refused(reception):
    reception.forget("worker-0.0")
    assert reason(reception, hello()) == "nobody expects this worker"


def test_another_protocol_is_refused_with_both_numbers(reception):
    assert reason(reception, hello(PROTOCOL_VERSION + 1)) == (
        f"protocol {PROTOCOL_VERSION + 1} instead of {PROTOCOL_VERSION}"
    )


def test_another_version_is_refused_with_both_versions(reception):
    text = reason(reception, hello(python="2.7.18"))
    assert text.startswith(f"python 2.7.18 on the worker, {versions()['python']} on the head; ")


def test_a_refusal_says_what_to_do(reception):
    text = reason(reception, hello(python="2.7.18", numpy="0.9"))
    python = ".".join(versions()["python"].split(".")[:2])
    assert text.endswith(
        f"; start workers with Python {python}, and run "
        f"`python -m pip install numpy=={versions()['numpy']}` there"
    )


def test_all_that_is_wrong_is_said_at_once(reception):
    text = reason(reception, hello(PROTOCOL_VERSION + 1, python="2.7.18", numpy="0.9"))
    assert [part.split()[0] for part in text.split("; ")] == [
        "protocol",
        "python",
        "numpy",
        "start",
    ]


def test_a_worker_without_versions_is_refused(reception):
    text = reason(reception, Hello(PROTOCOL_VERSION, {}, "node7", 4711))
    assert "python missing on the worker" in text


def test_before_the_agreement_the_description_is_for_the_users_thread(reception):
    assert reception.answer("worker-0.0", Built(b"description")) is None


def test_after_the_agreement_a_replacement_is_told_the_layout_at_once(reception):
    reception.agree(LAYOUT)
    assert reception.answer("worker-0.1", Built(b"description")) == [(LAYOUT, ())]


@pytest.mark.parametrize("message", [Stepped(1), LaidOut()], ids=["Stepped", "LaidOut"])
def test_what_is_no_joining_is_for_the_users_thread(reception, message):
    assert reception.answer("worker-0.0", message) is None


def test_before_its_first_words_a_worker_has_only_a_name(reception):
    assert reception.whereabouts("worker-0.0") == "worker-0.0"


def test_after_its_first_words_host_and_process_are_known(reception):
    reception.answer("worker-0.0", hello())
    assert reception.whereabouts("worker-0.0") == "worker-0.0 (host node7, pid 4711)"
