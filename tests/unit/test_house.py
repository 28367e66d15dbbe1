"""Which part of the house may import which, read from the source itself."""

import ast
import inspect
import pathlib
import subprocess
import sys

import pytest

import clusterenv

SOURCE = pathlib.Path(clusterenv.__file__).parent

# Part → the parts that it may import, besides itself and the errors. The longest name counts.
MAY_IMPORT = {
    "__init__": "backends env launchers learning limits policies rollout sync version "
    "wire.addresses",
    "__main__": "cli",
    "cli": "arrays backends.base checks construction distributions env launchers "
    "policies profile randomness sync version wire worker",
    "checks": "backends.base env launchers.base limits plain wire",
    # The user's side of the head.
    "env": "agreement arguments backends call_state construction head launchers.base limits "
    "partial_batches policies rollout sync vector_env wire",
    "vector_env": "arguments call_state head randomness",
    "construction": "backends env launchers limits policies sync wire.addresses",
    "agreement": "plain wire",
    "arguments": "arrays plain",
    "call_state": "",
    "partial_batches": "arrays head plain",
    # Head and worker meet in the wire, and in decisions and arrays that both know.
    "head": "arrays backends.base distributions launchers.base limits plain policies.base "
    "policies.copy policies.encoding policies.recurrent profile randomness rollout stopwatch sync "
    "wire",
    "worker": "arrays distributions plain policies.base policies.copy policies.recurrent "
    "randomness rollout stopwatch sync wire",
    "wire": "arrays plain version",
    # Plugins know their own base and little else.
    "launchers": "wire",
    "launchers.in_process": "launchers wire worker",
    "backends": "",
    "policies": "arrays distributions plain randomness wire",
    "adapters": "env rollout sync",
    # Decisions and arrays: nothing that opens anything.
    "arrays": "",
    "distributions": "arrays randomness",
    "learning": "arrays rollout",
    "limits": "",
    "plain": "arrays",
    "profile": "",
    "randomness": "arrays",
    "rollout": "arrays plain",
    "stopwatch": "",
    "sync": "",
    "errors": "",
    "version": "",
}

# Sockets are touched at the head's and the worker's end, and waited for in two more places.
MAY_IMPORT_ZMQ = {
    "wire/zmq_channel.py",
    "wire/worker_channel.py",
    "wire/channel.py",
    "head/io_thread.py",
}

# Each optional dependency has one home, which says how to install it.
OPTIONAL = {"torch", "jax", "envpool", "ray", "kubernetes", "rich", "stable_baselines3"}

FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path):
    """``wire/codec.py`` → ``wire.codec``, ``wire/__init__.py`` → ``wire``."""
    *folders, stem = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(folders if folders and stem == "__init__" else [*folders, stem])


MODULES = {name_of(path): path for path in FILES}


def imports_of(path):
    """The full names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            for alias in node.names:
                module = f"{node.module}.{alias.name}".removeprefix("clusterenv.")
                yield f"clusterenv.{module}" if module in MODULES else node.module


def parts_imported_by(path):
    names = {name for name in imports_of(path) if name.split(".")[0] == "clusterenv"}
    return {name.removeprefix("clusterenv").removeprefix(".") or "__init__" for name in names}


def row_for(module):
    fitting = [part for part in MAY_IMPORT if module == part or module.startswith(f"{part}.")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_part_may(module):
    part = row_for(module)
    assert part is not None, f"{module} is in no row of MAY_IMPORT"
    allowed = {part, "errors", *MAY_IMPORT[part].split()}
    forbidden = {
        name
        for name in parts_imported_by(MODULES[module])
        if not any(name == one or name.startswith(f"{one}.") for one in allowed)
    }
    assert not forbidden, f"{module} may import {sorted(allowed)} only"


def test_head_and_worker_never_import_each_other():
    for module, path in MODULES.items():
        for one, other in [("head", "worker"), ("worker", "head")]:
            if module.split(".")[0] == one:
                assert other not in {name.split(".")[0] for name in parts_imported_by(path)}


def test_the_table_is_read_the_way_it_is_meant():
    assert row_for("launchers.in_process") == "launchers.in_process"
    assert row_for("launchers.local") == "launchers"
    assert row_for("wire.codec") == "wire"
    assert parts_imported_by(MODULES["wire.channel"]) >= {"wire.bell", "wire.codec"}


def test_sockets_are_touched_in_few_places():
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(name.split(".")[0] == "zmq" for name in imports_of(path))
    }
    assert users == MAY_IMPORT_ZMQ


def test_an_optional_dependency_is_imported_in_one_file_of_its_own():
    homes = {}
    for path in FILES:
        for name in {name.split(".")[0] for name in imports_of(path)} & OPTIONAL:
            homes.setdefault(name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


# Names and docstrings.


def names_for_type_checkers():
    """What `clusterenv/__init__.py` imports for type checkers and editors, by module."""
    for node in ast.parse((SOURCE / "__init__.py").read_text()).body:
        if isinstance(node, ast.If):
            for line in node.body:
                yield from ((alias.name, line.module) for alias in line.names)


def test_the_public_names_are_sorted_and_complete():
    lazy = dict(names_for_type_checkers())
    assert lazy == clusterenv._MODULE_BY_NAME
    assert clusterenv.__all__ == sorted([*lazy, "__version__"])
    assert set(clusterenv.__all__) <= set(dir(clusterenv))


@pytest.mark.parametrize("name", clusterenv.__all__)
def test_each_public_name_can_be_imported(name):
    assert getattr(clusterenv, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'clusterenv' has no attribute 'Cluster'"):
        clusterenv.Cluster


def test_every_public_function_of_learning_is_at_the_top():
    import clusterenv.learning

    functions = inspect.getmembers(clusterenv.learning, inspect.isfunction)
    own = {name for name, one in functions if one.__module__ == "clusterenv.learning"}
    assert own <= set(clusterenv.__all__)


@pytest.mark.parametrize("statement", ["import clusterenv", "from clusterenv import ClusterEnv"])
def test_what_is_not_used_is_not_imported(statement):
    script = f"import sys; {statement}; print(*{OPTIONAL!r} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


def test_every_public_exception_is_in_the_tree_of_the_docstring():
    import clusterenv.errors

    public = [n for n in clusterenv.__all__ if n.endswith("Error")]
    assert public
    for name in public:
        assert f" {name} " in f" {clusterenv.errors.__doc__.replace(chr(10), ' ')} "


def undocumented(tree, prefix):
    """Public modules, classes, functions and methods without a docstring."""
    if not ast.get_docstring(tree):
        yield prefix
    for node in tree.body:
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        name = f"{prefix}.{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node, name)
        elif not ast.get_docstring(node) and not is_overload(node):
            yield name


def is_overload(node):
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_has_a_docstring(module):
    assert list(undocumented(ast.parse(MODULES[module].read_text()), module)) == []
