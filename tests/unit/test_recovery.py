"""A lost slot is reported once and starts over, as the autoreset mode has it."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.head.batch import Batch
from clusterenv.head.recovery import Recovery, restart_seed
from clusterenv.host.events import Voided
from clusterenv.plain.row_layout import RowLayout
from clusterenv.plain.spaces import leaves_of
from clusterenv.plain.values import pack, unpack
from clusterenv.protocol.requests import (
    Act,
    Call,
    Collect,
    CountTime,
    Evaluate,
    Newest,
    Reset,
    SetAttr,
    Step,
)

NEXT_STEP, SAME_STEP, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
NEWEST = Newest(1, 1)
SPACE = spaces.Box(-9.0, 9.0, (2,))
NUM_ENVS = 6


class PaperAsking:
    """Keeps what is asked."""

    def __init__(self):
        self.last_number, self.asked = 100, []

    def new_number(self):
        self.last_number += 1
        return self.last_number

    def ask(self, request):
        self.asked.append(request)


class Scene:
    """A recovery, and all that it works with."""

    def __init__(self, mode):
        layout = RowLayout(leaves_of(SPACE))
        self.results = layout.view(bytearray(layout.size(NUM_ENVS)), NUM_ENVS)
        self.results.observations[0][...] = np.arange(NUM_ENVS)[:, None]
        self.results.rewards[...] = 5.0
        self.results.terminated[...] = True
        self.asking, self.ready = PaperAsking(), []
        self.batch = Batch(SPACE, self.results)
        self.recovery = Recovery(self.asking, self.batch, mode, self.ready)
        self.recovery.forget(range(NUM_ENVS), 42)

    def infos(self):
        return self.batch.infos.take_of(range(NUM_ENVS))

    def resets(self):
        """The slots of each reset that was asked for since the last time."""
        asked, self.asking.asked = self.asking.asked, []
        assert all(isinstance(one, Reset) for one in asked)
        return [one.slots for one in asked]


def step(slots=range(NUM_ENVS)):
    return Step(1, tuple(slots))


def collect(slots=range(NUM_ENVS)):
    return Collect(1, tuple(slots), 5, NEWEST)


def void(request, slots):
    return Voided(request, tuple(slots))


def seeds_of(reset):
    return unpack(reset.seeds, allow_pickle=False)


def is_reported(scene, slot):
    """Whether a slot's row, and not only its infos, says that its env was lost."""
    results = scene.results
    flags = results.rewards[slot], results.terminated[slot], results.truncated[slot]
    return flags == (0.0, False, True)


# Nothing was lost.


@every_mode
def test_without_a_loss_every_slot_can_be_stepped(mode):
    scene = Scene(mode)
    assert not scene.recovery.has_lost_slots
    assert list(scene.recovery.deal_with_lost(range(NUM_ENVS))) == list(range(NUM_ENVS))
    scene.recovery.restart_lost(range(NUM_ENVS))
    assert scene.resets() == []


# Lost between two steps.


def test_next_step_reports_a_loss_with_the_next_step_and_resets_with_the_one_after():
    scene = Scene(NEXT_STEP)
    assert scene.recovery.lost((1, 2), []) == []
    assert scene.infos() == {}
    assert scene.recovery.deal_with_lost(range(NUM_ENVS)) == [0, 3, 4, 5]
    assert scene.infos()["_env_lost"].tolist() == [False, True, True, False, False, False]
    assert all(is_reported(scene, slot) for slot in (1, 2))
    assert not is_reported(scene, 3)
    assert scene.ready == [1, 2]
    assert scene.resets() == []
    assert scene.recovery.deal_with_lost(range(NUM_ENVS)) == [0, 3, 4, 5]
    assert scene.resets() == [(1, 2)]
    assert scene.infos() == {}
    assert not scene.recovery.has_lost_slots
    assert list(scene.recovery.deal_with_lost(range(NUM_ENVS))) == list(range(NUM_ENVS))


def test_same_step_reports_a_loss_and_resets_within_the_next_step():
    scene = Scene(SAME_STEP)
    scene.recovery.lost((1, 2), [])
    assert scene.recovery.deal_with_lost(range(NUM_ENVS)) == [0, 3, 4, 5]
    (reset,) = scene.asking.asked
    assert reset.slots == (1, 2)
    # Its rows are new observations, and still have to say what happened.
    assert reset.reports_loss
    assert scene.ready == []
    infos = scene.infos()
    assert infos["_env_lost"].tolist() == [False, True, True, False, False, False]
    assert infos["final_obs"][1].tolist() == [1.0, 1.0]
    assert infos["final_obs"][2].tolist() == [2.0, 2.0]
    assert not scene.recovery.has_lost_slots


def test_disabled_reports_a_loss_and_waits_for_the_user():
    scene = Scene(DISABLED)
    scene.recovery.lost((1,), [])
    assert scene.recovery.deal_with_lost(range(NUM_ENVS)) == [0, 2, 3, 4, 5]
    assert is_reported(scene, 1)
    with pytest.raises(AssertionError, match=r"slots \[1\] were lost .* reset them first"):
        scene.recovery.deal_with_lost(range(NUM_ENVS))
    assert scene.resets() == []
    assert scene.recovery.deal_with_lost((0, 2)) == [0, 2]
    scene.recovery.forget([1], 43)
    assert list(scene.recovery.deal_with_lost(range(NUM_ENVS))) == list(range(NUM_ENVS))


def test_the_last_good_observation_stays():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((3,), [])
    scene.recovery.deal_with_lost(range(NUM_ENVS))
    assert scene.batch.observation_of(3).tolist() == [3.0, 3.0]


@every_mode
def test_slots_that_are_not_stepped_now_are_reported_when_they_are(mode):
    scene = Scene(mode)
    scene.recovery.lost((1, 4), [])
    assert scene.recovery.deal_with_lost((0, 1)) == [0]
    assert scene.infos()["_env_lost"].tolist() == [False, True] + [False] * 4
    assert scene.recovery.deal_with_lost((4, 5)) == [5]
    assert scene.infos()["_env_lost"].tolist() == [False] * 4 + [True, False]


@every_mode
def test_a_reset_by_the_user_leaves_nothing_to_report(mode):
    scene = Scene(mode)
    scene.recovery.lost((1, 2), [])
    scene.recovery.forget([1, 2], 43)
    assert not scene.recovery.has_lost_slots
    assert scene.infos() == {}


# Lost within a step.


@pytest.mark.parametrize("request_", [step(), Act(1, tuple(range(NUM_ENVS)), NEWEST)], ids=str)
@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED], ids=lambda mode: mode.name)
def test_a_step_that_is_void_is_answered_by_the_loss(mode, request_):
    scene = Scene(mode)
    assert scene.recovery.lost((1, 2), [void(request_, (1, 2))]) == []
    assert all(is_reported(scene, slot) for slot in (1, 2))
    assert scene.ready == [1, 2]
    assert scene.infos()["_env_lost"].tolist() == [False, True, True, False, False, False]
    assert scene.resets() == []


@pytest.mark.parametrize("request_", [step(), Act(1, tuple(range(NUM_ENVS)), NEWEST)], ids=str)
def test_same_step_resets_within_the_step_that_is_void(request_):
    scene = Scene(SAME_STEP)
    scene.recovery.lost((1, 2), [void(request_, (1, 2))])
    (reset,) = scene.asking.asked
    assert (reset.slots, reset.reports_loss) == ((1, 2), True)
    # The reset's answer makes them ready.
    assert scene.ready == []
    assert not scene.recovery.has_lost_slots


def test_of_a_worker_that_had_stepped_only_some_slots_the_others_are_reported_later():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1, 2, 3), [void(step((2,)), (2,))])
    assert scene.ready == [2]
    assert scene.infos()["_env_lost"].tolist() == [False, False, True, False, False, False]
    assert scene.recovery.deal_with_lost((1, 3)) == []
    assert scene.infos()["_env_lost"].tolist() == [False, True, False, True, False, False]


def test_parts_of_a_step_that_are_void_are_reported_in_slot_order():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1, 2, 3), [void(step((3,)), (3,)), void(step((1,)), (1,))])
    assert scene.ready == [1, 3]


def test_a_slot_that_is_lost_again_while_it_waits_for_its_restart_is_not_reported_twice():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1,), [void(step(), (1,))])
    scene.infos()
    scene.recovery.lost((1,), [])
    assert scene.recovery.deal_with_lost(range(NUM_ENVS)) == [0, 2, 3, 4, 5]
    assert scene.infos() == {}
    assert scene.resets() == [(1,)]


# Lost within a reset.


@every_mode
def test_a_reset_that_is_void_is_repeated_with_its_seeds_and_options(mode):
    scene = Scene(mode)
    seeds = pack([7, None, 2**70, 9], allow_pickle=False)
    reset = Reset(3, (1, 2, 3, 4), 42, seeds, b"options", together=False)
    assert scene.recovery.lost((2, 3), [void(reset, (2, 3))]) == []
    (again,) = scene.asking.asked
    assert again.request == scene.asking.last_number > reset.request
    assert again.slots == (2, 3)
    assert seeds_of(again) == [None, 2**70]
    assert (again.run_seed, again.options, again.together) == (42, b"options", False)
    # Nobody saw anything of the loss.
    assert not scene.recovery.has_lost_slots
    assert scene.infos() == {}


def test_a_reset_without_seeds_is_repeated_without():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((2,), [void(Reset(3, (1, 2), 42), (2,))])
    (again,) = scene.asking.asked
    assert (again.slots, again.seeds) == ((2,), b"")


def test_a_reset_within_a_step_still_reports_the_first_loss_when_it_is_repeated():
    scene = Scene(SAME_STEP)
    scene.recovery.lost((1,), [void(step(), (1,))])
    (reset,) = scene.asking.asked
    scene.asking.asked.clear()
    scene.recovery.lost((1,), [void(reset, (1,))])
    (again,) = scene.asking.asked
    assert again.reports_loss
    assert seeds_of(again) == seeds_of(reset)
    assert scene.infos()["_env_lost"].tolist() == [False, True] + [False] * 4


def test_of_a_reset_and_the_step_after_it_the_step_tells_of_the_loss():
    scene = Scene(NEXT_STEP)
    reset = Reset(3, (0, 1), 42)
    scene.recovery.lost((0, 1), [void(reset, (0, 1)), void(step((1,)), (1,))])
    assert scene.resets() == [(0,)]
    assert is_reported(scene, 1)
    assert scene.recovery.deal_with_lost((1,)) == []
    assert scene.resets() == [(1,)]


def test_two_workers_that_are_lost_within_one_reset_are_each_reset_again():
    scene = Scene(NEXT_STEP)
    reset = Reset(3, (0, 1, 2, 3), 42, pack([0, 1, 2, 3], allow_pickle=False))
    scene.recovery.lost((0, 1), [void(reset, (0, 1))])
    scene.recovery.lost((2, 3), [void(reset, (2, 3))])
    assert [(one.slots, seeds_of(one)) for one in scene.asking.asked] == [
        ((0, 1), [0, 1]),
        ((2, 3), [2, 3]),
    ]


# Lost within a fragment.


@every_mode
def test_fragments_that_are_void_have_to_be_collected_again_after_a_reset(mode):
    scene = Scene(mode)
    lost = [void(collect(), (1, 2)), void(collect(), (1, 2))]
    assert scene.recovery.lost((1, 2), lost) == lost
    assert scene.resets() == []
    assert scene.infos() == {}
    scene.recovery.restart_lost(range(NUM_ENVS))
    (reset,) = scene.asking.asked
    assert (reset.slots, reset.reports_loss) == ((1, 2), False)
    scene.recovery.restart_lost(range(NUM_ENVS))
    assert len(scene.asking.asked) == 1


@every_mode
def test_what_was_lost_before_a_policy_acts_starts_over_without_a_report(mode):
    scene = Scene(mode)
    scene.recovery.lost((1, 4), [])
    scene.recovery.restart_lost((0, 1))
    assert scene.resets() == [(1,)]
    scene.recovery.restart_lost((4, 5))
    assert scene.resets() == [(4,)]
    assert not scene.recovery.has_lost_slots
    assert scene.infos() == {}


def test_slots_whose_reset_was_abandoned_start_over():
    scene = Scene(NEXT_STEP)
    scene.recovery.restart_later({2, 3})
    assert scene.recovery.deal_with_lost((1, 2, 3)) == [1]
    assert scene.resets() == [(2, 3)]
    assert scene.infos() == {}


def test_a_loss_that_was_not_reported_yet_is_reported_before_the_slot_starts_over():
    # Lost during a call; that was asked again, and abandoned before the replacement was ready.
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1,), [void(Call(1, (0, 1), "render", b""), (1,))])
    scene.recovery.restart_later({1})
    assert scene.recovery.deal_with_lost((0, 1)) == [0]
    assert is_reported(scene, 1)
    assert scene.ready == [1]
    assert scene.resets() == []
    assert scene.recovery.deal_with_lost((0, 1)) == [0]
    assert scene.resets() == [(1,)]


def test_a_slot_whose_reset_is_repeated_does_not_start_over_again_for_its_fragment():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1, 2), [void(collect(), (1, 2)), void(Reset(3, (2,), 42), (2,))])
    assert scene.resets() == [(2,)]
    assert list(scene.recovery.deal_with_lost((2, 3))) == [2, 3]
    scene.recovery.restart_lost((1, 2))
    assert scene.resets() == [(1,)]


# Asked for in vain, since the env was lost before.


def test_a_fragment_that_was_asked_for_before_the_loss_was_heard_of_starts_nothing_over():
    scene = Scene(NEXT_STEP)
    first, second = (Collect(number, (1, 2), 5, NEWEST) for number in (98, 99))
    scene.recovery.lost((1, 2), [void(first, (1, 2))])
    scene.recovery.restart_lost((1, 2))
    assert scene.resets() == [(1, 2)]
    assert scene.recovery.lost((1, 2), [void(second, (1, 2))], in_vain=True) == [
        void(second, (1, 2))
    ]
    scene.recovery.restart_lost((1, 2))
    assert scene.resets() == []
    assert not scene.recovery.has_lost_slots


def test_a_fragment_that_was_asked_for_later_tells_of_a_loss_that_nobody_heard_of():
    scene = Scene(NEXT_STEP)
    scene.recovery.lost((1, 2), [])
    scene.recovery.restart_lost((1, 2))
    scene.resets()
    later = Collect(scene.asking.new_number(), (1, 2), 5, NEWEST)
    scene.recovery.lost((1, 2), [void(later, (1, 2))], in_vain=True)
    scene.recovery.restart_lost((1, 2))
    assert scene.resets() == [(1, 2)]


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_a_step_in_vain_is_answered_by_the_loss_and_that_is_reported_once(is_heard_of):
    scene = Scene(NEXT_STEP)
    if is_heard_of:
        scene.recovery.lost((1, 2), [])
    scene.recovery.lost((1, 2), [void(step(), (1, 2))], in_vain=True)
    assert scene.ready == [1, 2]
    assert all(is_reported(scene, slot) for slot in (1, 2))
    scene.infos()
    scene.recovery.deal_with_lost(range(NUM_ENVS))
    assert scene.infos() == {}
    assert scene.resets() == [(1, 2)]


def test_a_step_in_vain_is_answered_by_the_reset_that_is_on_its_way():
    """Else its row would say at once that the env was lost and that an episode begins."""
    scene = Scene(NEXT_STEP)
    reset = Reset(98, (1, 2), 7)
    scene.recovery.lost((1, 2), [void(reset, (1, 2))])
    assert scene.resets() == [(1, 2)]
    # Slots for which a reset is under way are not among those that are lost.
    scene.recovery.lost((), [void(step(), (1, 2))], in_vain=True)
    assert scene.ready == []
    assert scene.infos() == {}
    assert not scene.recovery.has_lost_slots


# Lost within anything else.


@pytest.mark.parametrize(
    "request_",
    [
        Call(1, (0, 1), "render", b""),
        SetAttr(1, (0, 1), "speed", (b"", b"")),
        Evaluate(1, (0, 1), (1, 1), 7, True, NEWEST),
        CountTime(1, (0, 1), True),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_was_lost_within_another_call_is_reported_with_the_next_step(request_):
    scene = Scene(NEXT_STEP)
    assert scene.recovery.lost((1,), [void(request_, (1,))]) == []
    assert scene.infos() == {}
    assert scene.recovery.deal_with_lost((0, 1)) == [0]
    assert scene.infos()["_env_lost"].tolist() == [False, True] + [False] * 4


# Seeds.


def test_a_slot_starts_over_with_a_seed_of_the_run_the_slot_and_the_how_manieth_time():
    scene = Scene(NEXT_STEP)
    for incarnation in (1, 2, 3):
        scene.recovery.restart_later({2, 5})
        scene.recovery.restart_lost((2, 5))
        reset = scene.asking.asked.pop()
        expected = [restart_seed(42, slot, incarnation) for slot in (2, 5)]
        assert seeds_of(reset) == expected
        assert reset.run_seed == expected[0]


def test_restart_seeds_are_the_same_every_time():
    assert restart_seed(42, 3, 1) == restart_seed(42, 3, 1)


def test_restart_seeds_of_different_slots_and_incarnations_differ():
    seeds = [
        restart_seed(run, slot, incarnation)
        for run in (0, 1, 42)
        for slot in range(64)
        for incarnation in range(1, 5)
    ]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("run_seed", [0, 2**31, 2**64, 2**127])
def test_any_run_seed_gives_a_seed_that_gymnasium_takes(run_seed):
    seed = restart_seed(run_seed, 3, 1)
    assert type(seed) is int
    assert 0 <= seed < 2**32


# Whatever happens.

losses = st.tuples(
    st.just("lose"),
    st.sets(st.integers(0, NUM_ENVS - 1), min_size=1),
    st.sampled_from(["nothing", "step", "collect", "call"]),
)
steps = st.tuples(st.just("step"), st.sets(st.integers(0, NUM_ENVS - 1), min_size=1), st.none())


@given(st.lists(losses | steps, max_size=30), st.sampled_from([NEXT_STEP, SAME_STEP]))
def test_every_slot_of_a_step_is_stepped_or_reset_or_reported_and_only_one_of_them(events, mode):
    scene = Scene(mode)
    for kind, chosen, during in events:
        slots = sorted(chosen)
        scene.ready.clear()
        scene.infos()
        if kind == "lose":
            request = {"step": step(), "collect": collect(), "call": Call(1, (0,), "x", b"")}
            voided = [] if during == "nothing" else [void(request[during], slots)]
            scene.recovery.lost(slots, voided)
            if during == "step":
                reset = [slot for group in scene.resets() for slot in group]
                assert sorted([*scene.ready, *reset]) == slots
            else:
                assert scene.resets() == []
        else:
            live = scene.recovery.deal_with_lost(slots)
            reset = [slot for group in scene.resets() for slot in group]
            assert sorted([*live, *reset, *scene.ready]) == slots
            assert not scene.recovery._unreported & chosen
