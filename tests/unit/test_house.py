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
    "__init__": "backends building_slots env launchers learning limits policies rollout sync "
    "version wire.addresses",
    "__main__": "tools",
    "tools": "arrays backends.base bounded_log construction distributions env host.events "
    "host.starting launchers lifelines limits memory plain platforms policies profile protocol "
    "randomness status surroundings sync version wire",
    # The user's side of the head. Network and Limits are what the user writes.
    "env": "arguments backends calls construction env_calls head launchers.base limits policies "
    "policy_calls protocol rollout stopwatch sync wire.addresses",
    "calls": "head stopwatch",
    "env_calls": "agreement arguments arrays calls head randomness",
    "policy_calls": "as_policy backends.base calls construction counts env_calls head protocol "
    "rollout stopwatch",
    "construction": "backends counts env launchers limits platforms policies settings sync "
    "wire.addresses",
    "as_policy": "policies",
    "settings": "backends.base launchers.base limits sync wire.addresses",
    "agreement": "plain",
    "arguments": "arrays plain",
    # Three floors: the head knows hosts, here or behind a wire; a host starts workers; a worker
    # knows what it shares with its host.
    "head": "agreement arrays backends.base descriptors distributions host launchers.base "
    "interrupts launchers.in_process limits plain "
    "policies profile protocol randomness restarts rollout settings sharing status stopwatch "
    "sync wire",
    "wire.host_main": "descriptors host launchers.attached launchers.base lifelines protocol wire",
    "wire": "arrays bell host interrupts lifelines plain policies.copy protocol stopwatch "
    "surroundings sync version",
    "host": "arrays bell children descriptors memory plain protocol restarts sharing stopwatch "
    "strays sync.rules worker.deadlines worker.main worker.loop",
    "worker": "arrays backends.base building_slots distributions lifelines memory plain policies "
    "protocol randomness strays surroundings",
    "memory": "arrays bell plain protocol",
    "protocol": "arrays plain",
    "plain": "arrays",
    # Plugins know their own base and little else.
    "launchers": "children counts strays wire.addresses wire.invitation",
    "backends": "arrays building_slots",
    "policies": "arrays distributions plain randomness",
    "adapters": "arrays as_policy construction distributions env policies randomness rollout sync",
    "logging": "rollout sync",
    # Decisions and arrays: nothing that opens anything.
    "arrays": "",
    "counts": "",
    "building_slots": "",
    "distributions": "arrays randomness",
    "learning": "arrays rollout",
    "limits": "",
    "profile": "",
    "randomness": "arrays",
    "restarts": "",
    "rollout": "arrays plain policies.torch protocol step_infos",
    "step_infos": "arrays protocol",
    "sharing": "",
    "status": "",
    "stopwatch": "",
    "sync": "",
    "errors": "",
    "platforms": "",
    "version": "",
    # Processes.
    "bell": "",
    "bounded_log": "",
    "children": "bounded_log",
    "interrupts": "",
    "descriptors": "",
    "lifelines": "",
    "strays": "",
    "surroundings": "",
}

FLOORS = ("head", "host", "worker")
"""The rooms where classes have grown too large before."""
# Sockets are made in two places, and waited for in two more.
MAY_IMPORT_ZMQ = {
    "wire/head_socket.py",
    "wire/host_socket.py",
    "wire/driver.py",
    "wire/serving.py",
}
MAY_START_PROCESSES = (
    "launchers/",
    "children.py",
    "strays.py",
    "tools/bench.py",
    "tools/view/playing.py",
)
NETWORK = {"zmq", "socket", "socketserver", "ssl", "http", "urllib", "asyncio"}
WITHOUT_NETWORK = ("host", "worker", "memory", "protocol", "plain", "sync", "sharing", "children")

LONGEST_FILE = 400
MOST_METHODS, MOST_ATTRIBUTES = 20, 12
REASON = "It knows much because "
"""So begins the line of a docstring that says why a class may be larger."""

# Envs and policies are both written in JAX.
HOMES_OF_JAX = ["backends/jax_engine.py", "backends/jax_forms.py", "policies/jax.py"]
# Policies are modules, and what they return are torch's distributions.
HOMES_OF_TORCH = ["policies/torch.py", "policies/torch_distributions.py"]
# Tables of tools and the bar of a run are both drawn with rich.
HOMES_OF_RICH = ["logging/bar.py", "tools/terminal.py"]
# Each other optional dependency has one home, which says how to install it.
OPTIONAL = {
    "torch",
    "jax",
    "envpool",
    "ray",
    "kubernetes",
    "rich",
    "stable_baselines3",
    "zstandard",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "PIL",
    "tensorboard",
    "wandb",
    "mlflow",
    "dm_env",
    "minari",
    "rl_games",
    "tianshou",
}

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


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_exists(module):
    gone = parts_imported_by(MODULES[module]) - MODULES.keys()
    assert not gone, f"{module} imports {sorted(gone)}, which is not there"


def floors_below(module, floors):
    """Which of these floors a module imports, even through others."""
    seen, waiting = set(), [module]
    while waiting:
        one = waiting.pop()
        if one not in seen and one in MODULES:
            seen.add(one)
            waiting += parts_imported_by(MODULES[one])
    return sorted(one for one in seen if one.split(".")[0] in floors)


@pytest.mark.parametrize(
    ("floor", "others"),
    [
        ("worker", ("head", "wire", "host", "env", "launchers")),
        ("memory", ("head", "wire", "host", "worker", "env", "launchers")),
        ("host", ("head", "wire", "env", "launchers")),
        ("wire", ("head", "env")),
    ],
)
def test_a_floor_knows_nothing_of_those_above_it_even_through_others(floor, others):
    for module in MODULES:
        if module.split(".")[0] == floor:
            assert floors_below(module, others) == [], module


def test_the_table_is_read_the_way_it_is_meant():
    assert row_for("launchers.slurm.jobs") == "launchers"
    assert row_for("wire.messages") == "wire"
    assert row_for("sharing") == "sharing"
    assert row_for("nowhere.at_all") is None
    assert parts_imported_by(MODULES["host.starting"]) >= {"children", "worker.main"}
    assert floors_below("worker.main", {"memory"})


def test_every_row_of_the_table_is_about_a_part_that_exists():
    for part, allowed in MAY_IMPORT.items():
        for one in [part, *allowed.split()]:
            assert any(m == one or m.startswith(f"{one}.") for m in MODULES), one


def users_of(*names):
    """The files that import one of these."""
    return {
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(name.split(".")[0] in names for name in imports_of(path))
    }


def test_sockets_are_touched_in_two_files():
    assert users_of("zmq") == MAY_IMPORT_ZMQ


def test_hosts_and_workers_know_no_network():
    rooms = {path for path in users_of(*NETWORK) if path.split("/")[0] in WITHOUT_NETWORK}
    rooms |= {path for path in users_of(*NETWORK) if path.removesuffix(".py") in WITHOUT_NETWORK}
    assert rooms == set()


def test_processes_are_started_by_launchers_and_children_only():
    others = {
        path for path in users_of("subprocess", "pty") if not path.startswith(MAY_START_PROCESSES)
    }
    assert others == set()


def test_an_optional_dependency_is_imported_in_one_file_of_its_own():
    homes = {}
    for path in FILES:
        for name in {name.split(".")[0] for name in imports_of(path)} & OPTIONAL:
            homes.setdefault(name, []).append(path.relative_to(SOURCE).as_posix())
    assert homes.pop("jax") == HOMES_OF_JAX
    assert homes.pop("rich") == HOMES_OF_RICH
    assert homes.pop("torch") == HOMES_OF_TORCH
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


# Sizes.


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_file_is_longer_than_can_be_overlooked(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def functions_of(node):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [one for one in node.body if isinstance(one, kinds)]


def attributes_of(node):
    """What objects of a class hold: its declared fields, and all that its methods assign."""
    found = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    for function in functions_of(node):
        for one in ast.walk(function):
            is_own = isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
            if is_own and isinstance(one.ctx, ast.Store) and one.value.id == "self":
                found.add(one.attr)
    return found


def gives_a_reason(node):
    lines = (ast.get_docstring(node) or "").splitlines()
    return any(line.startswith(REASON) and len(line) > len(REASON) + 10 for line in lines)


def classes_of(*rooms):
    for module, path in MODULES.items():
        if module.split(".")[0] in rooms:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield f"{module}.{node.name}", node


CLASSES = dict(classes_of(*FLOORS))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_small_or_says_why_it_is_not(name):
    node = CLASSES[name]
    methods, attributes = len(functions_of(node)), len(attributes_of(node))
    is_small = methods <= MOST_METHODS and attributes <= MOST_ATTRIBUTES
    assert is_small or gives_a_reason(node), (
        f"{name} has {methods} methods and {attributes} attributes; split it, or say why not in a "
        f"line of its docstring that begins with {REASON!r}"
    )


def test_a_reason_is_only_given_where_it_is_needed():
    for name, node in CLASSES.items():
        is_large = len(functions_of(node)) > MOST_METHODS
        is_large = is_large or len(attributes_of(node)) > MOST_ATTRIBUTES
        assert is_large or not gives_a_reason(node), name


def test_sizes_are_counted_the_way_they_are_meant():
    text = """
class One:
    \'\'\'Docstring.

    It knows much because nobody else could know all of that.
    \'\'\'
    field: int
    constant = 3
    def __init__(self): self.a, self.b = 1, 2
    def other(self, x): self.c = x.d = self.a
    @property
    def d(self): return self._e.f
""".replace("\\'", "'")
    node = ast.parse(text).body[0]
    assert len(functions_of(node)) == 3
    assert attributes_of(node) == {"field", "a", "b", "c"}
    assert gives_a_reason(node)


# Reaching through others.


def chains_in(tree):
    """``self.a.b.c`` or ``x.a.b.c``: what is reached through two objects' attributes, and where.

    Who needs ``c`` asks ``a`` for it, or was given ``b``. What is imported is no object that one
    reaches through, and what a call or an index gives begins a chain of its own.
    """
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        names, at = [], node
        while isinstance(at, ast.Attribute):
            names.append(at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id not in imported:
            chain = ".".join([at.id, *reversed(names)])
            if chain.count(".") >= 3:
                yield node.lineno, chain


@pytest.mark.parametrize("module", MODULES)
def test_nobody_reaches_through_two_objects(module):
    assert list(chains_in(ast.parse(MODULES[module].read_text()))) == []


@pytest.mark.parametrize(
    ("text", "chains"),
    [
        ("self.a.b", []),
        ("self.a.b()", []),
        ("self.a.b.c", ["self.a.b.c"]),
        ("self.a.b.c()", ["self.a.b.c"]),
        ("self.a.b.c.d", ["self.a.b.c.d"]),
        ("self.a.b.c.d.e = 1", ["self.a.b.c.d.e"]),
        ("worker.a.b", []),
        ("worker.a.b.c[0]", ["worker.a.b.c"]),
        ("worker.a.b.c()", ["worker.a.b.c"]),
        ("self.a.b().c.d", []),
        ("self.a[0].b.c", []),
        ("import np; np.random.x.y", []),
        ("f(worker.a.b.c, x.y)", ["worker.a.b.c"]),
    ],
)
def test_chains_are_found_the_way_they_are_meant(text, chains):
    assert [chain for _, chain in chains_in(ast.parse(text))] == chains


# One meaning per name.


def test_a_class_name_means_one_thing_in_the_whole_package():
    homes = {}
    for name, _ in classes_of(*{module.split(".")[0] for module in MODULES}):
        module, _, own = name.rpartition(".")
        if not own.startswith("_"):
            homes.setdefault(own, set()).add(module)
    assert {own: where for own, where in homes.items() if len(where) > 1} == {}


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


@pytest.mark.parametrize("missing", ["jax", "kubernetes", "ray", "torch"])
def test_a_star_import_leaves_out_what_is_not_installed(missing):
    script = f"import sys; sys.modules[{missing!r}] = None; from clusterenv import *; ClusterEnv"
    script += "; import clusterenv; print(len(clusterenv.__all__))"
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(told) == len(clusterenv.__all__) - 1


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
