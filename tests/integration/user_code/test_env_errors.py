"""An exception in an env's code: what the head raises, and that the run survives it."""

from functools import cache

import pytest

from clusterenv import RemoteError
from tests import inside
from tests.environments import troubles
from tests.environments.vectors import SHARED_MEMORY, actions_for, cluster, oracle_of, walks
from tests.equality import assert_same

NUM_ENVS = 4
SLOT = 2  # the first slot of the second worker

VERBS = {
    "reset": lambda envs: envs.reset(seed=1),
    "step": lambda envs: envs.step(actions_for(NUM_ENVS)),
    "poke": lambda envs: envs.call("poke"),
    "mood": lambda envs: envs.set_attr("mood", "sad"),
}


def error_of(call):
    """The exception that `call()` raises."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


@cache
def error_in(verb, trouble, transport="shared_memory"):
    """The exception that the head raises when one env meets `trouble` in `verb`.

    Remembered, because several tests look at the same one.
    """
    makers = walks(NUM_ENVS, SLOT, trouble=trouble, verb=verb)
    with cluster(makers, transport) as envs:
        if verb != "reset":
            envs.reset(seed=0)
        return error_of(lambda: VERBS[verb](envs))


def error_at_start(trouble, transport="shared_memory"):
    return error_of(
        lambda: cluster(walks(NUM_ENVS, SLOT, trouble=trouble, verb="make"), transport).close()
    )


def notes_of(error):
    return "\n".join(error.__notes__)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
@pytest.mark.parametrize("verb", VERBS)
def test_a_builtin_exception_keeps_its_type_and_text(verb, transport):
    error = error_in(verb, troubles.raise_value_error, transport)
    assert type(error) is ValueError
    assert error.args == ("the walk was blocked",)


@pytest.mark.parametrize("transport", SHARED_MEMORY)
def test_an_exception_in_the_constructor_of_an_env_keeps_its_type(transport):
    error = error_at_start(troubles.raise_value_error, transport)
    assert type(error) is ValueError
    assert "raise_value_error" in str(error.__cause__)
    assert "worker-1.0" in notes_of(error)


def test_an_exception_class_of_the_users_module_is_raised_as_itself():
    error = error_in("step", troubles.raise_walk_error)
    assert type(error) is troubles.WalkError
    assert error.args == ("lost the way", 7)


@pytest.mark.parametrize(
    ("trouble", "name"),
    [(troubles.raise_note_error, "NoteError"), (troubles.raise_table_error, "TableError")],
)
def test_an_exception_that_cannot_be_built_again_is_a_remote_error(trouble, name):
    error = error_in("step", trouble)
    assert type(error) is RemoteError
    assert name in str(error)
    assert trouble.__name__ in str(error.__cause__)


def test_an_exception_that_cannot_be_shown_is_a_remote_error():
    error = error_in("step", troubles.raise_mute_error)
    assert type(error) is RemoteError
    assert "MuteError" in str(error)


def test_a_missing_file_is_a_file_not_found_error():
    error = error_in("step", troubles.open_missing_file)
    assert type(error) is FileNotFoundError
    assert "/nowhere/map.txt" in str(error)


@pytest.mark.parametrize("verb", VERBS)
def test_the_cause_shows_where_in_the_env_it_happened(verb):
    error = error_in(verb, troubles.raise_value_error)
    remote = str(error.__cause__)
    assert "environments/walks.py" in remote
    assert "in raise_value_error" in remote
    assert "the walk was blocked" in remote


def test_the_cause_shows_the_whole_chain_of_exceptions():
    remote = str(error_in("step", troubles.raise_chained).__cause__)
    assert "ValueError: the walk was blocked" in remote
    assert "KeyError: 'map'" in remote


@pytest.mark.parametrize("verb", VERBS)
def test_a_note_names_the_worker_and_the_slot(verb):
    notes = notes_of(error_in(verb, troubles.raise_value_error))
    assert "worker-1.0" in notes
    assert f"slot {SLOT}" in notes


def test_a_note_shows_the_action_of_a_step():
    notes = notes_of(error_in("step", troubles.raise_value_error))
    assert f"{actions_for(NUM_ENVS)[SLOT][0]:.4f}" in notes


@pytest.mark.parametrize("transport", SHARED_MEMORY)
@pytest.mark.parametrize("verb", VERBS)
def test_a_reset_starts_anew_after_an_exception(verb, transport):
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.raise_value_error, verb=verb, at=1)
    oracle = oracle_of(NUM_ENVS)
    with cluster(makers, transport) as envs:
        if verb != "reset":
            envs.reset(seed=0)
        error_of(lambda: VERBS[verb](envs))
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        for number in range(3):
            actions = actions_for(NUM_ENVS, number)
            assert_same(envs.step(actions), oracle.step(actions))


def test_a_call_that_failed_does_not_disturb_the_episodes():
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.raise_value_error, verb="poke", at=1)
    oracle, actions = oracle_of(NUM_ENVS), actions_for(NUM_ENVS)
    with cluster(makers) as envs:
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        error_of(lambda: envs.call("poke"))
        assert_same(envs.step(actions), oracle.step(actions))
        assert envs.call("poke") == (1,) * NUM_ENVS


def test_exceptions_on_all_workers_at_once_are_one_exception():
    makers = walks(1, 0, trouble=troubles.raise_value_error, verb="step", at=1) * 2
    oracle, actions = oracle_of(2), actions_for(2)
    with cluster(makers) as envs:
        envs.reset(seed=0)
        assert type(error_of(lambda: envs.step(actions))) is ValueError
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        assert_same(envs.step(actions), oracle.step(actions))


def test_a_keyboard_interrupt_at_the_head_leaves_the_run_usable(tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    makers = walks(NUM_ENVS, SLOT, trouble=troubles.Gate(str(gate)), verb="step")
    oracle, actions = oracle_of(NUM_ENVS), actions_for(NUM_ENVS)

    def interrupt(*_):
        raise KeyboardInterrupt

    with cluster(makers) as envs:
        envs.reset(seed=0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            inside.replace_wait(envs, patch, interrupt)
            envs.step(actions)
        gate.touch()
        assert_same(envs.reset(seed=5), oracle.reset(seed=5))
        assert_same(envs.step(actions), oracle.step(actions))
