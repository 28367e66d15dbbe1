"""An invitation is one line, and comes back as it was."""

import msgspec
import pytest

from clusterenv.errors import ProtocolError
from clusterenv.wire.invitation import Invitation, SharedDescriptors

ALONE = Invitation(
    worker="worker-0.0",
    address="tcp://10.0.0.1:4711",
    server_key="s" * 40,
    public_key="p" * 39 + "\\",
    secret_key='<"{}>#' + "k" * 34,
    lease_s=30.0,
    step_timeout_s=0.5,
    startup_timeout_s=60.0,
)
DESCRIPTORS = {name: 3 + index for index, name in enumerate(SharedDescriptors.__struct_fields__)}
SHARED = msgspec.structs.replace(ALONE, shared=SharedDescriptors(**DESCRIPTORS))
both = pytest.mark.parametrize("invitation", [ALONE, SHARED], ids=["remote", "shares memory"])


@both
def test_an_invitation_comes_back_as_it_was(invitation):
    assert Invitation.from_bytes(invitation.to_bytes()) == invitation


@both
def test_an_invitation_is_one_line_of_text(invitation):
    text = invitation.to_bytes()
    assert b"\n" not in text
    assert text.isascii()


def test_the_end_of_the_line_does_not_matter():
    assert Invitation.from_bytes(ALONE.to_bytes() + b"\n") == ALONE


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", ALONE.to_bytes()[:-5]])
def test_what_is_no_invitation_is_refused(data):
    with pytest.raises(ProtocolError):
        Invitation.from_bytes(data)


def test_an_invitation_cannot_be_changed():
    with pytest.raises(AttributeError):
        ALONE.worker = "worker-1.0"
