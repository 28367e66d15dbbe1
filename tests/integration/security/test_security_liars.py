"""A worker with a valid key that breaks the protocol ends alone: not the head, nor others."""

import os
import pickle
import warnings
from functools import partial

import msgspec
import numpy as np
import pytest

from clusterenv import StartupError
from clusterenv.plain.values import pack
from clusterenv.wire.chunks import CHUNK_BYTES
from clusterenv.wire.codec import encode, frame_of, header_of
from clusterenv.wire.messages import (
    ArrayHeader,
    Built,
    Close,
    Collected,
    Hello,
    InFrameBuffer,
    Leaving,
    Pull,
    Raised,
    Returned,
    Stepped,
    Warned,
    Weights,
)
from tests import inside
from tests.environments.vectors import actions_for, oracle_of, row_of
from tests.equality import assert_same
from tests.integration.security.liars import (
    NUM_ENVS,
    Raw,
    assert_only_the_liar_was_replaced,
    instead,
    instead_of,
    ran_with,
)

HONEST = (0, 1)
replace = msgspec.structs.replace


class Canary:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return partial(open, self.path, "w"), ()


def canary(path):
    return msgspec.msgpack.encode(["pickle", pickle.dumps(Canary(str(path)))])


def packed(plain):
    return msgspec.msgpack.encode(plain)


def with_infos(infos):
    # By slot, as the first byte says.
    return lambda message, frames: [(replace(message, infos=b"s" + infos), frames)]


def with_array(index, array):
    def make(message, frames):
        headers = list(message.arrays)
        headers[index], frames[index] = header_of(array), frame_of(array)
        return [(replace(message, arrays=tuple(headers)), frames)]

    return make


def with_header(index, lie):
    def make(message, frames):
        headers = list(message.arrays)
        headers[index] = lie
        return [(replace(message, arrays=tuple(headers)), frames)]

    return make


RAISED = Raised(0, 0, "builtins", "ValueError", pack(("x",), allow_pickle=False), "x", "")
STEP_LIES = {
    "noise": lambda message, frames: [Raw(os.urandom(100))],
    "nothing": lambda message, frames: [Raw(b"")],
    "half a frame": lambda message, frames: [Raw(bytes(CHUNK_BYTES))],
    "a frame too many": lambda message, frames: [(message, [*frames, b"x"])],
    "no frames": lambda message, frames: [(message, ())],
    "twice": lambda message, frames: [(message, frames), (message, frames)],
    "of another request": lambda message, frames: [
        (replace(message, request=message.request + 1000), frames)
    ],
    "of another kind": instead(lambda m: Returned(m.request, pack([1, 2], allow_pickle=False))),
    "a fragment": instead(lambda m: Collected(m.request, 1, (), ())),
    "what only the head says": instead(lambda _: Close()),
    "weights": instead(lambda _: Weights(1, 1, 1, "raw")),
    "a frame buffer that is not there": instead(
        lambda m: InFrameBuffer(encode(m), 2**40, (2**40, -1), 2**62)
    ),
    "an error outside of any request": instead(lambda _: RAISED),
    "an error of another request": instead(lambda _: replace(RAISED, request=12345)),
    "rewards of another shape": with_array(0, np.zeros((2, 2))),
    "rewards of another dtype": with_array(0, np.zeros(2, np.int64)),
    "a huge shape": with_header(0, ArrayHeader("<f8", (2**62, 4))),
    "very many dimensions": with_header(0, ArrayHeader("<f8", (2**62,) * 100_000)),
    "objects as rewards": with_header(0, ArrayHeader("|O", (2,))),
    "infos of another's slot": with_infos(pack([(0, {"age": 7})], allow_pickle=False)),
    "infos of no slot": with_infos(pack([(2**70, {})], allow_pickle=False)),
    "infos that cannot be printed": with_infos(packed(["list", [["int", "f" * 20_000]]])),
    "infos with keys that have no hash": with_infos(packed(["dict", [[["list", []], 1]]])),
    "infos without end": with_infos(b"\x92\xa4list\x91" * 100_000),
    "infos of a huge shape": with_infos(packed(["array", "<f8", [2**62, 0, 2**62], b""])),
    "infos that are no text": with_infos(packed(["str", b"\xff" * 1_000_000])),
    "pulls without end": lambda message, frames: [(Pull(0, 0, "first"), ())] * 200,
    "a pull with a long cause": instead(lambda _: Pull(0, 0, "x" * 10_000)),
    "joins without end": lambda message, frames: [(Built(b""), ())] * 200,
    "a Hello with a long host": instead(lambda _: Hello(3, {}, "x" * 10_000, 1)),
}


@pytest.mark.parametrize("make", STEP_LIES.values(), ids=STEP_LIES)
def test_a_lie_in_a_step_ends_the_liar_alone(make):
    lie = instead_of(Stepped, make)
    oracle = oracle_of(NUM_ENVS)
    lost = False
    armed = []
    with ran_with(lambda m, f: lie(m, f) if armed else None) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        armed.append(True)
        for number in range(30):
            actions = actions_for(NUM_ENVS, number)
            ours, theirs = envs.step(actions), oracle.step(actions)
            for slot in HONEST:
                mine, right = row_of(ours, slot), row_of(theirs, slot)
                mine[-1].pop("env_lost", None)
                assert_same(mine, right)
            lost = lost or "env_lost" in ours[-1]
            if lost and number > 3:
                break
        assert lie.told
        assert lost
        assert_only_the_liar_was_replaced(envs)


PICKLES = {
    "infos": lambda data: instead_of(Stepped, with_infos(data)),
    "objects": lambda data: instead_of(
        Stepped, lambda message, frames: [(replace(message, objects=data), frames)]
    ),
    "values": lambda data: instead_of(Returned, instead(lambda m: Returned(m.request, data))),
    "an error": lambda data: instead_of(
        Returned, instead(lambda m: replace(RAISED, request=m.request, arguments=data))
    ),
}


@pytest.mark.parametrize("make", PICKLES.values(), ids=PICKLES)
def test_a_pickle_of_a_worker_that_is_not_trusted_is_never_opened(make, tmp_path):
    file = tmp_path / "opened"
    lie = make(canary(file))
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step(actions_for(NUM_ENVS))
        try:
            envs.call("poke")
        except Exception as error:
            assert "lost" in str(error) or str(error) == "ValueError: x"
        assert lie.told
    assert not file.exists()
    pickle.loads(pickle.dumps(Canary(str(file)))).close()
    assert file.exists(), "the canary would not have sung"


DESCRIPTIONS = {
    "noise": os.urandom(50),
    "no description": pack([], allow_pickle=False),
    "no spaces": pack({"metadata": {}}, allow_pickle=False),
    "a space that does not exist": pack(
        {
            "observation_spaces": [["space", "Odd", {}, None]],
            "action_spaces": [["space", "Odd", {}, None]],
            "metadata": {},
            "render_mode": None,
            "steps_together": False,
        },
        allow_pickle=False,
    ),
    "a space that is larger than memory": pack(
        {
            "observation_spaces": [["space", "MultiBinary", {"n": 2**45}, None]],
            "action_spaces": [["space", "MultiBinary", {"n": 2**45}, None]],
            "metadata": {},
            "render_mode": None,
            "steps_together": False,
        },
        allow_pickle=False,
    ),
}


@pytest.mark.parametrize("data", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_of_nothing_names_the_worker_that_sent_it(data):
    lie = instead_of(Built, instead(lambda message: replace(message, description=data)))
    with pytest.raises(StartupError, match=r"worker-1\.0 .*broke the protocol"):
        ran_with(lie)


def test_warnings_without_end_do_no_harm():
    many = [(Warned("UserWarning", "x" * 100_000), ())] * 3_000
    lie = instead_of(Stepped, lambda message, frames: [*many, (message, frames)])
    with ran_with(lie) as envs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envs.reset(seed=1)
        assert 0 < len(caught) <= 1_000
        assert max(len(str(warning.message)) for warning in caught) < 11_000
        envs.step(actions_for(NUM_ENVS))
        assert inside.worker_names(envs)[1] == "worker-1.0"


def test_a_worker_that_leaves_again_and_again_is_replaced_once():
    lie = instead_of(
        Stepped, lambda message, frames: [(message, frames)] + [(Leaving("x"), ())] * 50
    )
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        for number in range(5):
            envs.step(actions_for(NUM_ENVS, number))
        assert_only_the_liar_was_replaced(envs)
