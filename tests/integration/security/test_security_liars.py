"""A host with a valid key that breaks the protocol ends alone: not the head, nor others."""

import os
import pickle
import time
import warnings
from functools import partial

import msgspec
import numpy as np
import pytest

from clusterenv import StartupError
from clusterenv.plain.values import pack
from clusterenv.protocol.message import encode
from clusterenv.protocol.replies import Raised
from clusterenv.wire.chunks import CHUNK_BYTES
from clusterenv.wire.messages import (
    Build,
    Built,
    CannotStart,
    Close,
    Extra,
    FragmentMade,
    Hello,
    Leaving,
    Pull,
    Pulled,
    Ready,
    RequestFailed,
    RowsMade,
    StaffReport,
    ValuesMade,
    Warned,
    Weights,
    WorkerLost,
    WorkerReport,
)
from tests import inside
from tests.environments.vectors import actions_for, oracle_of, row_of
from tests.equality import assert_same
from tests.integration.polling import eventually
from tests.integration.security.liars import (
    NUM_ENVS,
    Raw,
    assert_nobody_was_replaced,
    assert_only_the_liar_was_replaced,
    besides,
    instead,
    instead_of,
    ran_with,
)

HONEST = (0, 1)
OWN = (2, 3)
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


def changed(**changes):
    """The same message, but for these fields."""
    return lambda message, frames: [(replace(message, **changes), frames)]


def with_infos(infos, slots=OWN):
    # By slot, as the first byte says.
    return changed(extras=(Extra(slots, infos=b"s" + infos),))


def plain(value):
    return pack(value, allow_pickle=False)


RAISED = Raised(0, 0, "builtins", "ValueError", plain(("x",)), "x", "")
STATE = WorkerReport("worker-0.0", 1, "ready", 2, 2, 0)
STEP_LIES = {
    "noise": lambda message, frames: [Raw(os.urandom(100))],
    "nothing": lambda message, frames: [Raw(b"")],
    "half a frame": lambda message, frames: [Raw(bytes(CHUNK_BYTES))],
    "a frame too many": lambda message, frames: [(message, [*frames, b"x"])],
    "no frames": lambda message, frames: [(message, ())],
    "too few rows": lambda message, frames: [(message, [frames[0][:-64]])],
    "too many rows": lambda message, frames: [(message, [frames[0] * 2])],
    "rows of another's slots": changed(slots=(0, 1)),
    "rows of slots that nobody has": changed(slots=(2, 4)),
    "rows of a slot twice": changed(slots=(2, 2)),
    "rows of slots in another order": changed(slots=(3, 2)),
    "rows of no slots": lambda message, frames: [(replace(message, slots=()), [b""])],
    "of an epoch to come": lambda m, frames: [(replace(m, epoch=m.epoch + 1), frames)],
    "values instead": instead(lambda m: ValuesMade(m.epoch, 2, OWN, plain([1, 2]))),
    "a fragment instead": instead(lambda m: FragmentMade(m.epoch, 2, OWN, 1, (), ())),
    "what only the head says": instead(lambda _: Close(0.0)),
    "weights": instead(lambda _: Weights(1, 1, 1, "raw", "first")),
    "an error of another request": instead(
        lambda m: RequestFailed(m.epoch, 12345, OWN, RAISED, "here")
    ),
    "an error of another's slots": instead(
        lambda m: RequestFailed(m.epoch, 2, HONEST, RAISED, "here")
    ),
    "extras that overlap": changed(extras=(Extra((2,)), Extra(OWN))),
    "extras of another's slot": changed(extras=(Extra((0,), infos=b"s"),)),
    "extras of no slot": changed(extras=(Extra((), infos=b"s"),)),
    "actions of no policy": changed(extras=(Extra(OWN, acted=plain({"action": 1})),)),
    "objects where there are none": changed(extras=(Extra(OWN, objects=plain([[1, 2]])),)),
    "infos of another's slot": with_infos(plain([(0, {"age": 7})])),
    "infos of its own slot in another's": with_infos(plain([(3, {"age": 7})]), (2,)),
    "infos of no slot": with_infos(plain([(2**70, {})])),
    "infos that cannot be printed": with_infos(packed(["list", [["int", "f" * 20_000]]])),
    "infos with keys that have no hash": with_infos(packed(["dict", [[["list", []], 1]]])),
    "infos without end": with_infos(b"\x92\xa4list\x91" * 100_000),
    "infos of a huge shape": with_infos(packed(["array", "<f8", [2**62, 0, 2**62], b""])),
    "infos that are no text": with_infos(packed(["str", b"\xff" * 1_000_000])),
    "the loss of another's slots": instead(lambda m: WorkerLost(m.epoch, HONEST, "x", "x")),
    "a loss of what nobody asked": instead(
        lambda m: WorkerLost(m.epoch, OWN, "x", "x", ((99, OWN),))
    ),
    "a loss of requests of slots that are there": instead(
        lambda m: WorkerLost(m.epoch, (2,), "x", "x", ((2, OWN),))
    ),
    "a loss of a request twice": instead(
        lambda m: WorkerLost(m.epoch, OWN, "x", "x", ((2, OWN), (2, OWN)))
    ),
    "losses without end": lambda m, _: [(WorkerLost(m.epoch, OWN, "x", "x"), ())] * 1_100,
    "pulls without end": lambda message, frames: [(Pull(0, 0, "first"), ())] * 200,
    "a pull with a long cause": instead(lambda _: Pull(0, 0, "x" * 10_000)),
    "weights that nobody sent": instead(lambda _: Pulled(1, 0.1)),
    "reports without end": lambda m, _: [(StaffReport(()), ())] * 1_100,
    "farewells without end": lambda m, _: [(Leaving("x"), ())] * 1_100,
    "late rows without end": lambda m, _: [(RowsMade(m.epoch - 1, None), ())] * 10_100,
    "late losses without end": lambda m, _: [(WorkerLost(m.epoch - 1, OWN, "", ""), ())] * 1_100,
    "joins without end": lambda message, frames: [(Built(0, ()), ())] * 200,
    "a second Hello": instead(lambda _: Hello(7, {}, "machine", 1, 1)),
    "a Hello with a long machine": instead(lambda _: Hello(7, {}, "x" * 10_000, 1, 1)),
    "envs that nobody ordered": instead(lambda m: Built(m.epoch, ((2, b""),))),
    "a second Ready": instead(lambda m: Ready(m.epoch)),
    "workers that it does not have": instead(lambda _: StaffReport((STATE,) * 99)),
    "envs that cannot be built": instead(lambda _: CannotStart("x" * 100_000, RAISED)),
}


@pytest.mark.parametrize("make", STEP_LIES.values(), ids=STEP_LIES)
def test_a_lie_in_a_step_ends_the_liar_alone(make):
    # The first rows are those of the reset.
    lie = instead_of(RowsMade, make, skip=1)
    oracle = oracle_of(NUM_ENVS)
    with ran_with(lie) as envs:
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        lost = [step_beside(envs, oracle, number) for number in range(4)]
        assert lie.told
        # In this step, or in the next where a row came before the lie; once each.
        assert sorted(slot for slots in lost[:2] for slot in slots) == list(OWN)
        assert lost[2:] == [(), ()]
        assert_only_the_liar_was_replaced(envs)


def test_rows_that_come_twice_end_the_liar_alone():
    twice = lambda message, frames: [(message, frames), (message, frames)]  # noqa: E731
    lie = instead_of(RowsMade, twice, skip=1)
    oracle = oracle_of(NUM_ENVS)
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        oracle.reset(seed=1)
        assert step_beside(envs, oracle, 0) == ()
        assert lie.told
        # Within the next step they would be its answer: a host may say what it likes of its slots.
        time.sleep(0.2)
        assert [step_beside(envs, oracle, number) for number in (1, 2)] == [OWN, ()]
        assert_only_the_liar_was_replaced(envs)


def step_beside(envs, oracle, number):
    """Step both: the honest slots must agree. Which slots were lost."""
    actions = actions_for(NUM_ENVS, number)
    ours, theirs = envs.step(actions), oracle.step(actions)
    for slot in HONEST:
        mine, right = row_of(ours, slot), row_of(theirs, slot)
        mine[-1].pop("env_lost", None)
        assert_same(mine, right)
    mask = ours[-1].get("env_lost", np.zeros(NUM_ENVS, bool))
    return tuple(np.flatnonzero(mask).tolist())


@pytest.mark.parametrize("name", ["noise", "infos of another's slot", "too few rows"])
def test_a_lie_in_a_partial_batch_is_a_loss_that_recv_reports(name):
    lie = instead_of(RowsMade, STEP_LIES[name], skip=1)
    with ran_with(lie, batch_size=NUM_ENVS // 2) as envs:
        envs.async_reset(seed=1)
        lost = set()
        for number in range(40):
            *_, infos = envs.recv()
            if "env_lost" in infos:
                lost.update(infos["env_id"][infos["env_lost"]].tolist())
            envs.send(actions_for(NUM_ENVS, number)[infos["env_id"]], infos["env_id"])
        assert lie.told
        assert lost <= set(OWN)
        assert lost
        assert_only_the_liar_was_replaced(envs)


LATE = {
    "rows": lambda message, frames: (replace(message, epoch=message.epoch - 1), frames),
    "values": lambda m, _: (ValuesMade(m.epoch - 1, 1, OWN, b""), ()),
    "a loss": lambda m, _: (WorkerLost(m.epoch - 1, HONEST, "x", "x"), ()),
    "an error": lambda m, _: (RequestFailed(m.epoch - 1, 1, OWN, RAISED, "x"), ()),
    "a description": lambda m, _: (Built(m.epoch - 1, ()), ()),
    "that it is ready": lambda m, _: (Ready(m.epoch - 1), ()),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_comes_late_from_an_earlier_epoch_is_ignored(late):
    lie = instead_of(RowsMade, lambda m, frames: [late(m, frames), (m, frames)], skip=1)
    oracle = oracle_of(NUM_ENVS)
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        oracle.reset(seed=1)
        assert [step_beside(envs, oracle, number) for number in range(3)] == [()] * 3
        assert lie.told
        assert_nobody_was_replaced(envs)


VALUES_LIES = {
    "too few": plain([1]),
    "too many": plain([1, 2, 3]),
    "none": plain(None),
    "a dict": plain({2: 1, 3: 1}),
    "noise": b"\xc1\xc1",
}


@pytest.mark.parametrize("data", VALUES_LIES.values(), ids=VALUES_LIES)
def test_values_of_another_number_end_the_liar_alone(data):
    lie = instead_of(ValuesMade, changed(values=data))
    assert_call_fails_once(lie, lambda envs: envs.get_attr("length"))


VALUES_OF_OTHERS = {
    "of another's slots": changed(slots=HONEST),
    "of another request": changed(request=99),
    "of slots in another order": changed(slots=(3, 2)),
    "twice": lambda message, frames: [(message, frames), (message, frames)],
    "rows instead": instead(lambda m: RowsMade(m.epoch, OWN)),
}


@pytest.mark.parametrize("make", VALUES_OF_OTHERS.values(), ids=VALUES_OF_OTHERS)
def test_values_that_nobody_asked_for_end_the_liar_alone(make):
    lie = instead_of(ValuesMade, make)
    assert_call_fails_once(lie, lambda envs: envs.get_attr("length"))


def assert_call_fails_once(lie, call):
    """What was called cannot be repeated: the user is told that a host was lost, and no more."""
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        try:
            call(envs)
        except Exception as error:
            assert "call it again" in str(error)
            assert "broke the protocol" in str(error)
        assert lie.told
        assert eventually(lambda: call_again(envs, call))
        assert_only_the_liar_was_replaced(envs)


def call_again(envs, call):
    try:
        call(envs)
    except Exception as error:
        assert "call it again" in str(error)
        return False
    return inside.host_names(envs) != ["host-0.0", "host-1.0"]


PICKLES = {
    "infos": lambda data: instead_of(RowsMade, with_infos(data)),
    "objects": lambda data: instead_of(RowsMade, changed(extras=(Extra(OWN, objects=data),))),
    "actions": lambda data: instead_of(RowsMade, changed(extras=(Extra(OWN, acted=data),))),
    "values": lambda data: instead_of(ValuesMade, changed(values=data)),
    "an error": lambda data: instead_of(
        ValuesMade,
        instead(
            lambda m: RequestFailed(
                m.epoch, m.request, m.slots, replace(RAISED, arguments=data), "here"
            )
        ),
    ),
}


@pytest.mark.parametrize("make", PICKLES.values(), ids=PICKLES)
def test_a_pickle_of_a_host_that_is_not_trusted_is_never_opened(make, tmp_path):
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


def test_a_pickle_of_a_host_that_is_trusted_is_opened(tmp_path):
    """Shows that the test above would notice."""
    file = tmp_path / "opened"
    data = packed(["list", [["pickle", pickle.dumps(Canary(str(file)))], 2]])
    lie = instead_of(ValuesMade, changed(values=data))
    with ran_with(lie, trust_workers=True) as envs:
        envs.reset(seed=1)
        envs.call("poke")[2].close()
    assert file.exists()


def described(**changes):
    odd = ["space", "Odd", {}, None]
    description = {
        "observation_spaces": [odd],
        "action_spaces": [odd],
        "metadata": {},
        "render_mode": None,
        "steps_together": False,
    }
    return ((2, plain(description | changes)),)


HUGE = [["space", "MultiBinary", {"n": 2**45}, None]]
DESCRIPTIONS = {
    "noise": ((2, os.urandom(50)),),
    "none": (),
    "of one env": ((1, b""),),
    "of no env and three": ((0, b""), (2, b"")),
    "no description": ((2, plain([])),),
    "no spaces": ((2, plain({"metadata": {}})),),
    "a space that does not exist": described(),
    "a space that is larger than memory": described(observation_spaces=HUGE, action_spaces=HUGE),
}


@pytest.mark.parametrize("lies", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_of_nothing_names_the_host_that_sent_it(lies):
    lie = instead_of(Built, changed(descriptions=lies))
    with pytest.raises(StartupError, match=r"host-1\.0 .*broke the protocol"):
        ran_with(lie)


JOIN_LIES = {
    "ready before its envs are built": instead_of(Built, instead(lambda m: Ready(m.epoch))),
    "built twice": instead_of(Built, lambda m, frames: [(m, frames), (m, frames)]),
    "built in an epoch to come": instead_of(Built, changed(epoch=99)),
    "ready twice": instead_of(Ready, lambda m, frames: [(m, frames), (m, frames)]),
    "rows before anything was asked": instead_of(Built, instead(lambda _: RowsMade(1, None))),
    "two Hellos": instead_of(Hello, lambda m, frames: [(m, frames), (m, frames)]),
    "no workers": instead_of(Hello, changed(workers=0)),
    "very many workers": instead_of(Hello, changed(workers=2**40)),
    "what only the head says": instead_of(Hello, instead(lambda _: Close(0.0))),
}


@pytest.mark.parametrize("lie", JOIN_LIES.values(), ids=JOIN_LIES)
def test_a_lie_while_joining_does_not_hold_up_the_others(lie):
    with ran_with(lie, min_hosts=1) as envs:
        assert lie.told
        assert eventually(lambda: inside.host_names(envs) == ["host-0.0"] or moved_on(envs))
        oracle = oracle_of(NUM_ENVS)
        assert_same(envs.reset(seed=1), oracle.reset(seed=1))
        assert_same(envs.step(actions_for(NUM_ENVS)), oracle.step(actions_for(NUM_ENVS)))


def moved_on(envs):
    """The liar is noticed with the next thing that the head hears."""
    envs.reset(seed=0)
    return LIAR_IS_GONE.issuperset(inside.host_names(envs))


LIAR_IS_GONE = {"host-0.0", "host-1.1"}


def test_warnings_without_end_do_no_harm():
    many = [Warned("w" * 100_000, "UserWarning", "x" * 100_000)] * 3_000
    lie = instead_of(RowsMade, besides(*many))
    with ran_with(lie) as envs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envs.reset(seed=1)
        assert 0 < len(caught) <= 1_000
        assert max(len(str(warning.message)) for warning in caught) < 11_000
        envs.step(actions_for(NUM_ENVS))
        assert_nobody_was_replaced(envs)


@pytest.mark.filterwarnings("ignore:host-1.0, w")
def test_more_warnings_than_any_env_gives_end_the_liar_alone():
    many = [Warned("w", "UserWarning", "x")] * 5_100
    with ran_with(instead_of(RowsMade, besides(*many), skip=1)) as envs:
        envs.reset(seed=1)
        for number in range(3):
            envs.step(actions_for(NUM_ENVS, number))
        assert_only_the_liar_was_replaced(envs)


def test_warnings_without_end_before_the_run_begins_do_no_harm():
    many = [Warned("w" * 100_000, "UserWarning", "x" * 100_000)] * 3_000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ran_with(instead_of(Built, besides(*many))) as envs:
            envs.reset(seed=1)
    assert 0 < len(caught) <= 1_000
    assert max(len(str(warning.message)) for warning in caught) < 11_000


def test_a_host_that_leaves_again_and_again_is_replaced_once():
    lie = instead_of(RowsMade, besides(*[Leaving("x" * 100_000)] * 50))
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        for number in range(5):
            envs.step(actions_for(NUM_ENVS, number))
        assert eventually(lambda: inside.host_names(envs)[1] == "host-1.1" or step(envs))
        assert_only_the_liar_was_replaced(envs)


def step(envs):
    envs.step(actions_for(NUM_ENVS))


def test_long_texts_of_an_error_are_cut():
    many = 5_000_000
    raised = Raised(0, 2, "m" * many, "n" * many, bytes(many), "t" * many, "b" * many, "a" * many)
    lie = instead_of(
        ValuesMade,
        instead(lambda m: RequestFailed(m.epoch, m.request, m.slots, raised, "w" * many)),
    )
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        with pytest.raises(Exception) as caught:
            envs.call("poke")
    shown = [str(caught.value), str(caught.value.__cause__), *caught.value.__notes__]
    assert max(map(len, shown)) < 50_000


def test_long_texts_of_a_loss_are_cut(caplog):
    text = "x" * 5_000_000
    lie = instead_of(
        RowsMade,
        lambda m, _: [(WorkerLost(m.epoch, OWN, text, text, ((2, OWN),), text), ())],
        skip=1,
    )
    with ran_with(lie, min_hosts=1) as envs:
        envs.reset(seed=1)
        envs.step(actions_for(NUM_ENVS))
        assert lie.told
    assert "goes" in caplog.text or "go to the other hosts" in caplog.text
    assert len(caplog.text) < 100_000


def test_slots_that_a_host_says_its_workers_have_are_its_own():
    lie = instead_of(
        StaffReport,
        instead(lambda _: StaffReport((replace(STATE, first_slot=0, num_slots=2**62),))),
    )
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        assert lie.told
        assert eventually(lambda: inside.slots_by_host(envs).get("host-1.0") == [2, 3])


def test_a_message_to_a_host_is_no_message_of_one():
    """What the head says has other names than what hosts say."""
    lie = instead_of(RowsMade, lambda m, _: [Raw(encode(Build(None, 1)))], skip=1)
    with ran_with(lie) as envs:
        envs.reset(seed=1)
        envs.step(actions_for(NUM_ENVS))
        assert_only_the_liar_was_replaced(envs)
