"""An invitation is one line, and comes back as it was."""

import msgspec
import pytest

from clusterenv.errors import ProtocolError
from clusterenv.host.plan import WorkerLimits
from clusterenv.wire.host_main import _get_invitation
from clusterenv.wire.invitation import ENVIRONMENT_VARIABLE, TICKET, Invitation

PLAIN = Invitation(
    host="host-0.0",
    address="tcp://10.0.0.1:4711",
    server_key="s" * 40,
    public_key="p" * 39 + "\\",
    secret_key='<"{}>#' + "k" * 34,
    lease_s=30.0,
    limits=WorkerLimits(120.0, 0.5, 60.0, 3),
)
FULL = msgspec.structs.replace(PLAIN, workers=16, environment={"KEY": "it's\na € secret"})
both = pytest.mark.parametrize("invitation", [PLAIN, FULL], ids=["plain", "full"])


@both
def test_an_invitation_comes_back_as_it_was(invitation):
    assert Invitation.from_bytes(invitation.to_bytes()) == invitation


@both
def test_an_invitation_is_one_line_of_text(invitation):
    text = invitation.to_bytes()
    assert len(text.decode().splitlines()) == 1


@both
def test_nothing_secret_is_shown(invitation):
    assert repr(invitation) == "Invitation(host-0.0 to tcp://10.0.0.1:4711)"


def test_the_end_of_the_line_does_not_matter():
    assert Invitation.from_bytes(PLAIN.to_bytes() + b"\n") == PLAIN


def test_whoever_knows_better_where_the_head_is_may_say_so():
    there = FULL.at("tcp://192.0.2.7:9")
    assert there == msgspec.structs.replace(FULL, address="tcp://192.0.2.7:9")


def test_a_ticket_is_for_nobody_in_particular():
    assert msgspec.structs.replace(PLAIN, host=TICKET).is_ticket
    assert not PLAIN.is_ticket


NOT_UTF8 = PLAIN.to_bytes().replace(PLAIN.host.encode(), b"\xff\xfe")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", PLAIN.to_bytes()[:-5], b"\xff" * 9, NOT_UTF8])
def test_what_is_no_invitation_is_refused(data):
    with pytest.raises(ProtocolError):
        Invitation.from_bytes(data)


@pytest.mark.parametrize("key", ["server_key", "public_key", "secret_key"])
@pytest.mark.parametrize("text", ["", "k" * 39, "é" * 40, "\0" * 40, "k" * 1_000_000])
def test_keys_that_are_none_are_refused_in_few_words(key, text):
    wrong = msgspec.structs.replace(PLAIN, **{key: text})
    with pytest.raises(ProtocolError, match="40 printable ASCII") as caught:
        Invitation.from_bytes(wrong.to_bytes()).check_keys()
    assert len(str(caught.value)) < 200


def test_what_is_nested_without_end_is_refused():
    with pytest.raises(ProtocolError):
        Invitation.from_bytes(b'{"host":' + b"[" * 100_000)


@pytest.mark.parametrize("value", ["", "\n", "\udcff\udcfe", "{}"])
def test_an_environment_variable_that_holds_none_is_named(value, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, value)
    message = rf"{ENVIRONMENT_VARIABLE} does not hold a valid invitation \(.*\); .*--key-file FILE"
    with pytest.raises(SystemExit, match=message):
        _get_invitation()


def test_an_invitation_cannot_be_changed():
    with pytest.raises(AttributeError):
        PLAIN.host = "host-1.0"
