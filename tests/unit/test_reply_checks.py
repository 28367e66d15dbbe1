"""What a policy did elsewhere fits the spaces, the versions, and what it does at the head."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from clusterenv.errors import ProtocolError
from clusterenv.protocol.fragments import FragmentPart, kinds_of
from clusterenv.protocol.requests import Call, Collect, CountTime, Evaluate, Newest, SetAttr
from clusterenv.wire.reply_checks import ReplyChecks, check_values

OBSERVATION = Dict(image=Box(0, 255, (2, 2), np.uint8), speed=Box(-1.0, 1.0, (), np.float32))
ACTION = Dict(arm=Box(-1.0, 1.0, (3,), np.float32), mode=Discrete(4))
SLOTS, NUM_STEPS = (4, 5, 7), 6
ASKED = Newest(2, 3)


class Published:
    """Versions 1 and 2 are of the first policy, 3 to 5 of the second."""

    version = 5

    def policy_of(self, version):
        return 1 if version < 3 else 2

    policy_id_of = policy_of


CHECKS = ReplyChecks(OBSERVATION, ACTION, Published())


def arrays(count=len(SLOTS), ends=2, steps=NUM_STEPS, **others):
    """A fragment in which the first two slots came to an end."""
    made = {
        "observations/0": np.zeros((steps + 1, count, 2, 2), np.uint8),
        "observations/1": np.zeros((steps + 1, count), np.float32),
        "actions/0": np.zeros((steps, count, 3), np.float32),
        "actions/1": np.zeros((steps, count), np.int64),
        "rewards": np.zeros((steps, count)),
        "terminated": np.zeros((steps, count), bool),
        "truncated": np.zeros((steps, count), bool),
        "outputs/value": np.zeros((steps, count), np.float32),
        "distribution/logits": np.zeros((steps, count, 4)),
        "state/": np.zeros((count, 8)),
        "last_values": np.zeros(count, np.float32),
        "finals/values": np.zeros(ends, np.float32),
        "finals/0": np.zeros((ends, 2, 2), np.uint8),
        "finals/1": np.zeros(ends, np.float32),
        "finals/steps": np.arange(ends),
        "finals/slots": np.array(SLOTS[:ends], np.int64),
        "finals/returns": np.zeros(ends),
        "finals/lengths": np.ones(ends, np.int64),
    }
    return made | others


def part(version=3, slots=SLOTS, asked=ASKED, **changes):
    made = {name: array for name, array in arrays(**changes).items() if array is not None}
    return FragmentPart(Collect(1, slots, NUM_STEPS, asked), slots, version, made)


def test_a_true_fragment_is_believed():
    CHECKS.check_part(part())


@pytest.mark.parametrize("ends", [0, 1])
def test_a_fragment_with_fewer_ends_is_believed(ends):
    CHECKS.check_part(part(ends=ends))


def test_a_policy_may_have_no_values_and_no_state():
    without = ("last_values", "finals/values", "outputs/value", "state/", "distribution/logits")
    CHECKS.check_part(part(**dict.fromkeys(without)))


@pytest.mark.parametrize("name", [name for name in arrays() if not name.startswith("state")])
def test_nothing_may_be_missing_but_what_is_the_policys_own(name):
    if name.startswith(("distribution/",)):
        CHECKS.check_part(part(**{name: None}))
    else:
        with pytest.raises(ProtocolError):
            CHECKS.check_part(part(**{name: None}))


@pytest.mark.parametrize("name", arrays())
def test_every_array_has_as_many_rows_as_there_are_slots_or_ends(name):
    array = arrays()[name]
    for wrong in (array[:-1], array[None], np.concatenate([array, array])):
        with pytest.raises(ProtocolError):
            CHECKS.check_part(part(**{name: wrong}))


FIXED = [n for n in arrays() if n.startswith(("observations", "rewards", "term", "trunc"))]


@pytest.mark.parametrize("name", [*FIXED, "finals/0", "finals/steps", "finals/returns"])
def test_what_the_spaces_say_has_their_dtype(name):
    with pytest.raises(ProtocolError, match=name):
        CHECKS.check_part(part(**{name: arrays()[name].astype("<c16")}))


@pytest.mark.parametrize("name", ["odd", "actions/2", "observations/2", "finals/9", "rewards/", ""])
def test_names_that_no_fragment_has_are_refused(name):
    with pytest.raises(ProtocolError, match="no fragment has"):
        CHECKS.check_part(part(**{name: arrays()["rewards"]}))


@pytest.mark.parametrize("slots", [[0, 4], [4, 6]])
def test_episodes_end_in_slots_of_the_fragment(slots):
    with pytest.raises(ProtocolError, match="slots that are not its own"):
        CHECKS.check_part(part(**{"finals/slots": np.array(slots)}))


@pytest.mark.parametrize("steps", [[-1, 0], [0, NUM_STEPS], [0, 2**62]])
def test_episodes_end_in_steps_of_the_fragment(steps):
    with pytest.raises(ProtocolError, match="steps that are not in the fragment"):
        CHECKS.check_part(part(**{"finals/steps": np.array(steps)}))


@pytest.mark.parametrize("version", [-1, 0, 6])
def test_a_version_that_was_never_published_cannot_have_acted(version):
    with pytest.raises(ProtocolError, match="was never published"):
        CHECKS.check_part(part(version))


def test_a_policy_acts_that_is_no_older_than_the_one_asked_for():
    CHECKS.check_part(part(1, asked=Newest(1, 2)))
    CHECKS.check_part(part(5, asked=Newest(1, 2)))
    with pytest.raises(ProtocolError, match="of an earlier policy"):
        CHECKS.check_part(part(2))


# What the policy makes at the head.


class Own:
    """The second policy makes what `arrays` has; the first cannot act here."""

    def __init__(self):
        self.kinds = kinds_of(arrays())
        for name in [name for name in self.kinds if not name.startswith(POLICYS)]:
            del self.kinds[name]

    def knows(self, policy_id):
        return policy_id == 2

    def kinds_of(self, policy_id, observe):
        assert all(len(leaf) == len(SLOTS) for leaf in observe())
        return self.kinds if policy_id == 2 else None


POLICYS = ("actions/", "outputs/", "distribution/", "state/", "last_values", "finals/values")
STRICT = ReplyChecks(OBSERVATION, ACTION, Published(), Own())


def test_what_the_policy_makes_here_too_is_believed():
    STRICT.check_part(part())
    STRICT.check_part(part(5, ends=0))


MISFITS = {
    "without an output": {"distribution/logits": None},
    "with one more": {"outputs/x": np.zeros((NUM_STEPS, 3))},
    "of another shape": {"distribution/logits": np.zeros((NUM_STEPS, 3, 5))},
    "of another dtype": {"outputs/value": np.zeros((NUM_STEPS, 3), np.int64)},
    "times": {"outputs/value": np.zeros((NUM_STEPS, 3), "<M8[s]")},
    "of the other byte order": {"outputs/value": np.zeros((NUM_STEPS, 3), ">f4")},
    "longer than any float of the user's": {"outputs/value": np.zeros((NUM_STEPS, 3), "<f16")},
    "actions of another dtype": {"actions/1": np.zeros((NUM_STEPS, 3))},
    "without values": dict.fromkeys(("last_values", "finals/values")),
    "another state": {"state/": np.zeros((3, 9))},
    "one more state": {"state/x": np.zeros((3, 9))},
}


@pytest.mark.parametrize("changes", MISFITS.values(), ids=MISFITS)
def test_what_the_policy_does_not_make_here_is_refused_whoever_else_says_so(changes):
    with pytest.raises(ProtocolError):
        STRICT.check_part(part(**changes))


@pytest.mark.parametrize("changes", MISFITS.values(), ids=MISFITS)
def test_of_a_policy_that_cannot_act_here_nobody_knows_better(changes):
    STRICT.check_part(part(1, asked=Newest(1, 2), **changes))


def test_a_float_of_another_length_becomes_the_heads_own():
    given = part(**{"outputs/value": np.full((NUM_STEPS, 3), 0.1)})
    STRICT.check_part(given)
    assert given.arrays["outputs/value"].dtype == np.float32
    assert np.allclose(given.arrays["outputs/value"], 0.1)


def test_truth_values_are_0_or_1():
    odd = np.full((NUM_STEPS, 3), 2, np.uint8).view(bool)
    with pytest.raises(ProtocolError, match="truth values"):
        CHECKS.check_part(part(terminated=odd))


@pytest.mark.parametrize("action", [-1, 4, 2**62])
def test_actions_of_a_fragment_are_in_the_action_space(action):
    with pytest.raises(ProtocolError, match="not in the action space"):
        CHECKS.check_part(part(**{"actions/1": np.full((NUM_STEPS, 3), action)}))


# Single steps.


def acted(count=3, acts=3, **changes):
    """What version `acts` did in so many slots."""
    action = {"arm": np.zeros((count, 3), np.float32), "mode": np.zeros(count, np.int64)}
    said = {"action": action, "version": np.full(count, acts), "log_prob": np.zeros(count)}
    return {name: value for name, value in (said | changes).items() if value is not None}


def check(said, checks=None):
    def observe():
        return [np.zeros((3, 2, 2), np.uint8), np.zeros(3, np.float32)]

    (checks or CHECKS).check_acted(said, 3, ASKED, observe)


def test_what_a_policy_did_is_believed():
    check(acted())
    check(acted(value=np.zeros(3, np.float32), log_prob=None), STRICT)


ACTED_LIES = {
    "nothing": None,
    "a list": [],
    "a number": 1,
    "an empty dict": {},
    "without actions": acted(action=None),
    "without versions": acted(version=None),
    "too few rows": acted(2),
    "too many rows": acted(4),
    "actions of another structure": acted(action=np.zeros(3)),
    "actions of fewer leaves": acted(action={"arm": np.zeros((3, 3))}),
    "actions of more leaves": acted(action={**acted()["action"], "leg": "x"}),
    "actions of another shape": acted(action={**acted()["action"], "mode": np.zeros((3, 2))}),
    "outputs that are no arrays": acted(log_prob=[0.0, 0.0, 0.0]),
    "outputs without rows": acted(log_prob=np.float64(1.0)),
    "outputs that are scalars": acted(log_prob=np.array(1.0)),
    "outputs in a tuple": acted(log_prob=(np.zeros(3),)),
    "versions of another dtype": acted(version=np.full(3, 3.0)),
    "versions of another shape": acted(version=np.full((3, 1), 3)),
    "of no version": acted(acts=0),
    "of a version to come": acted(acts=6),
    "one of a version to come": acted(version=np.array([3, 6, 3])),
    "of an earlier policy": acted(acts=2),
}


@pytest.mark.parametrize("said", ACTED_LIES.values(), ids=ACTED_LIES)
def test_what_no_policy_can_have_done_is_refused(said):
    with pytest.raises(ProtocolError):
        check(said)


VALUE = np.zeros(3, np.float32)
OTHER_STEPS = {
    "without an output": acted(log_prob=None),
    "with another": acted(),
    "with one more": acted(value=VALUE),
    "of another shape": acted(log_prob=None, value=np.zeros((3, 2), np.float32)),
    "of another dtype": acted(log_prob=None, value=np.zeros(3, np.int64)),
    "actions of another dtype": acted(
        log_prob=None, value=VALUE, action={**acted()["action"], "mode": np.zeros(3)}
    ),
}


@pytest.mark.parametrize("said", OTHER_STEPS.values(), ids=OTHER_STEPS)
def test_a_step_with_outputs_that_the_policy_does_not_have_here_is_refused(said):
    check(said)
    with pytest.raises(ProtocolError):
        check(said, STRICT)


def test_one_policy_acts_in_a_step():
    class Both(Published):
        def policy_of(self, version):
            return version

    checks = ReplyChecks(OBSERVATION, ACTION, Both())
    with pytest.raises(ProtocolError, match="two policies"):
        check(acted(version=np.array([3, 4, 3])), checks)


# Values.

EVALUATE = Evaluate(1, (4, 5, 6), (1, 0, 2), 0, True, ASKED)
EPISODE = (1.0, 5)


@pytest.mark.parametrize(
    ("request_", "slots", "values"),
    [
        (Call(1, (4, 5, 6), "x", b""), (4, 6), [None, {"a": 1}]),
        (SetAttr(1, (4, 5, 6), "x", ()), (4, 5, 6), []),
        (EVALUATE, (4, 5, 6), [[EPISODE], [], [EPISODE] * 2]),
        (EVALUATE, (6,), [[EPISODE] * 2]),
    ],
)
def test_as_many_values_come_back_as_were_asked_for(request_, slots, values):
    check_values(request_, slots, values)


@pytest.mark.parametrize("values", [None, 1, "ab", (1, 2), {4: 1, 5: 2}, [], [1], [1, 2, 3]])
def test_another_number_of_values_is_refused(values):
    with pytest.raises(ProtocolError, match="without 2 values"):
        check_values(Call(1, (4, 5, 6), "x", b""), (4, 5), values)


def test_setting_attributes_returns_nothing():
    with pytest.raises(ProtocolError, match="without 0 values"):
        check_values(SetAttr(1, (4, 5), "x", ()), (4, 5), [1, 2])


@pytest.mark.parametrize(
    "played",
    [
        None,
        [],
        [EPISODE] * 2,
        [None],
        [(1.0,)],
        [("1.0", 5)],
        [(1.0, 5.0)],
        [(1.0, True)],
        [(1.0, -1)],
        [(1.0, 2**70)],
        [(np.float64(1.0), np.int64(5))],
        [[1.0, 5, 5]],
    ],
)
def test_an_evaluation_has_as_many_episodes_as_were_asked_for(played):
    with pytest.raises(ProtocolError, match="without 1 episodes of slot 4"):
        check_values(EVALUATE, (4,), [played])


SECONDS = {"idle": 1.0, "behind": 0.5, "env": 0.0}


@pytest.mark.parametrize("values", [[], [{}], [SECONDS, SECONDS], [None, SECONDS]])
def test_seconds_of_workers_are_believed(values):
    check_values(CountTime(1, (4, 5), False), (4, 5), values)


@pytest.mark.parametrize(
    "values",
    [
        None,
        7,
        "ab",
        [7],
        [{"idle": 1.0}],
        [{**SECONDS, 5: 1.0}],
        [{**SECONDS, "env": -1.0}],
        [{**SECONDS, "env": float("nan")}],
        [{**SECONDS, "env": float("inf")}],
        [{**SECONDS, "env": "x"}],
    ],
)
def test_what_are_no_seconds_is_refused(values):
    with pytest.raises(ProtocolError, match="malformed worker times"):
        check_values(CountTime(1, (4, 5), False), (4, 5), values)
