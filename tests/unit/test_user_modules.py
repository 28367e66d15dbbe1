"""The user's modules are told from installed ones, and found with all that they import."""

import importlib
import sys

import cloudpickle
import gymnasium
import numpy
import pytest

from clusterenv.wire.parcels import Packer
from clusterenv.wire.user_modules import (
    UserModules,
    is_users_path,
    names_in_pickle,
    names_in_source,
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write modules into a folder of the search path; what they import is forgotten again."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files):
        for name, source in files.items():
            path = tmp_path / f"{name.replace('___', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def needed(*names):
    return sorted(module.name for module in UserModules().needed_by(names))


@pytest.mark.parametrize("module", [numpy, gymnasium, importlib, cloudpickle])
def test_installed_packages_and_the_standard_library_are_not_the_users(module):
    assert not is_users_path(module.__file__)
    assert needed(module.__name__) == []


@pytest.mark.parametrize("name", ["sys", "clusterenv.sync", "__main__", "no_such_module", "a b"])
def test_what_is_not_the_users_or_not_there_is_left_out(name):
    assert needed(name) == []


def test_a_file_beside_the_script_is_the_users(project):
    project(my_env="")
    assert needed("my_env") == ["my_env"]


def test_what_a_module_imports_comes_along_without_being_imported_here(project):
    project(
        one="import two, numpy",
        two="def f():\n    from three import x",
        three="import one",
        four="",
    )
    assert needed("one") == ["one", "three", "two"]
    assert not {"one", "two", "three"} & set(sys.modules)


def test_a_package_comes_with_its_parents_and_what_they_import(project):
    project(
        pkg_____init__="from .base import Base",
        pkg___base="from pkg import other",
        pkg___other="",
        pkg___sub_____init__="",
        pkg___sub___leaf="from ... import pkg\nfrom ..sibling import x",
        pkg___sibling="",
        pkg___unused="",
    )
    assert needed("pkg.sub.leaf") == [
        "pkg",
        "pkg.base",
        "pkg.other",
        "pkg.sibling",
        "pkg.sub",
        "pkg.sub.leaf",
    ]


def test_what_a_package_has_imported_by_a_computed_name_comes_along(project):
    project(pkg_____init__="", pkg___dynamic="")
    importlib.import_module("pkg.dynamic")
    assert needed("pkg") == ["pkg", "pkg.dynamic"]


def test_a_folder_without_init_is_sent_as_a_parent_only(project):
    project(folder___leaf="")
    assert needed("folder") == []
    assert needed("folder.leaf") == ["folder", "folder.leaf"]


def test_entry_points_in_strings_count_as_imports(project):
    project(
        registers="register(id='X-v0', entry_point='envs.grid:Grid')",
        envs_____init__="",
        envs___grid="",
    )
    assert needed("registers") == ["envs", "envs.grid", "registers"]
    assert needed("envs.grid:Grid") == ["envs", "envs.grid"]
    assert needed("registers:X-v0") == ["envs", "envs.grid", "registers"]


def test_a_source_with_an_error_in_it_is_sent_as_it_is(project):
    project(broken="def f(:")
    assert needed("broken") == ["broken"]


def test_a_module_stays_as_it_was_first_read(project, tmp_path):
    project(changing="a = 1")
    modules = UserModules()
    (first,) = modules.needed_by(["changing"])
    (tmp_path / "changing.py").write_text("a = 2")
    assert modules.needed_by(["changing"]) == [first]


def test_a_module_that_appears_later_is_found(project):
    modules = UserModules()
    assert modules.needed_by(["later"]) == []
    project(later="")
    sys.path.append("/nowhere")
    try:
        assert [module.name for module in modules.needed_by(["later"])] == ["later"]
    finally:
        sys.path.remove("/nowhere")


def test_relative_imports_are_resolved():
    source = b"from . import a\nfrom .b import c\nfrom .. import d\nimport e.f"
    assert set(names_in_source(source, "p.q")) == {
        "p.q",
        "p.q.a",
        "p.q.b",
        "p.q.b.c",
        "p",
        "p.d",
        "e.f",
    }


def test_a_pickle_within_a_pickle_is_looked_into():
    class Wrapped:
        def __reduce__(self):
            return bytes, (cloudpickle.dumps(["deep_inside"]),)

    assert "deep_inside" in names_in_pickle(cloudpickle.dumps(Wrapped()))


def test_what_a_function_imports_is_among_the_names_of_its_pickle():
    def make():
        import lazily.imported as imported

        return imported

    make.__module__ = "__main__"
    assert "lazily.imported" in names_in_pickle(cloudpickle.dumps(make))


# Packing.


def test_for_workers_of_this_machine_modules_are_named_not_sent(project):
    project(my_env="class MyEnv:\n    pass")
    my_env = importlib.import_module("my_env")
    blob = cloudpickle.dumps(my_env.MyEnv)
    assert Packer(elsewhere=False).pack(my_env.MyEnv) == blob
    assert len(Packer(elsewhere=True).pack(my_env.MyEnv)) > len(blob)


def test_installed_classes_are_named_not_sent_to_any_worker():
    blob = cloudpickle.dumps(gymnasium.spaces.Discrete)
    assert Packer(elsewhere=True).pack(gymnasium.spaces.Discrete) == blob


def test_the_search_path_is_absolute_and_elsewhere_without_what_is_installed(tmp_path, monkeypatch):
    site = numpy.__path__[0].rpartition("/")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sys, "path", ["", "lib", ".", site])
    here = (str(tmp_path), str(tmp_path / "lib"))
    assert Packer(elsewhere=False).search_path == (*here, site)
    assert Packer(elsewhere=True).search_path == here
    assert Packer(elsewhere=True).working_directory == str(tmp_path)
    assert Packer(elsewhere=False).working_directory == ""
