"""Env ids that are not Gymnasium's own travel with the env."""

import gymnasium
import pytest
from gymnasium.envs.registration import WrapperSpec, registry

from clusterenv.construction import choose_backend
from clusterenv.wire.env_ids import pickle_registrations, register_from


@pytest.fixture(autouse=True)
def _registry():
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


def nobodys(module):
    return False


def sent(mentioned=(), is_users=nobodys):
    """The ids that another process gets to know."""
    data = pickle_registrations(set(mentioned), is_users)
    mine = dict(registry)
    for env_id, spec in mine.items():
        if not str(spec.entry_point).startswith("gymnasium."):
            del registry[env_id]
    before = set(registry)
    if data:
        register_from(data)
    return sorted(set(registry) - before)


def test_gymnasiums_own_ids_are_known_everywhere():
    def is_gymnasiums(module):
        return module.startswith("gymnasium.")

    assert pickle_registrations({"CartPole-v1"}, is_gymnasiums) == b""


def test_an_id_that_is_mentioned_is_sent():
    gymnasium.register("Some-v0", "some_package:Env")
    gymnasium.register("Other-v0", "some_package:Env")
    assert sent(["Some-v0"]) == ["Some-v0"]


@pytest.mark.parametrize("where", ["entry_point", "vector_entry_point"])
def test_all_ids_of_the_users_modules_are_sent(where):
    gymnasium.register("Some-v0", **{where: "mine.deep:Env"})
    assert sent(is_users=lambda module: module == "mine.deep") == ["Some-v0"]


def test_a_wrapper_of_the_users_makes_an_id_the_users():
    wrapper = WrapperSpec("W", "mine:W", {})
    gymnasium.register("Some-v0", "package:Env", additional_wrappers=(wrapper,))
    assert sent(is_users=lambda module: module == "mine") == ["Some-v0"]


def test_one_that_cannot_be_pickled_is_left_out():
    gymnasium.register("Bad-v0", "mine:Env", kwargs={"lock": __import__("threading").Lock()})
    gymnasium.register("Good-v0", "mine:Env")
    assert sent(is_users=lambda module: module == "mine") == ["Good-v0"]


def test_what_is_registered_already_stays():
    gymnasium.register("Some-v0", "mine:Env")
    data = pickle_registrations({"Some-v0"}, nobodys)
    registry["Some-v0"].kwargs["own"] = True
    register_from(data)
    assert registry["Some-v0"].kwargs == {"own": True}


def test_a_module_before_an_id_is_imported_at_the_head(tmp_path, monkeypatch):
    (tmp_path / "registers_it.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v3', 'registers_it:Env')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    _, _, spec = choose_backend("registers_it:Mine-v3", 1, (), {})
    assert spec.id == "Mine-v3"
