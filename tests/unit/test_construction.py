"""The constructor's arguments become a backend, a launcher and a number of workers."""

import re
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.envs import registration
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TimeLimit, TransformReward

from clusterenv import ClusterEnv, SshLauncher
from clusterenv.backends.gymnasium import CallableBackend, RegisteredBackend
from clusterenv.backends.vector import VectorBackend
from clusterenv.construction import (
    choose_backend,
    choose_launcher,
    choose_min_hosts,
    choose_num_workers,
    choose_sync_rule,
)
from clusterenv.head.opening import workers_by_host
from clusterenv.launchers.in_process import InProcessLauncher
from clusterenv.launchers.local import LocalLauncher
from clusterenv.sync import AdaptiveSync, EveryNth, EveryVersion


class TinyEnv(gymnasium.Env):
    observation_space = Discrete(2)
    action_space = Discrete(2)


def limit_time(env):
    return TimeLimit(env, 7)


def spare_reward(env):
    return TransformReward(env, abs)


def choose(env, num_envs=None, wrappers=(), **kwargs):
    return choose_backend(env, num_envs, wrappers, kwargs)


# Ids.


def test_an_id_becomes_a_backend_that_makes_it():
    backend, num_envs, _ = choose("CartPole-v1", 3)
    assert isinstance(backend, RegisteredBackend)
    assert num_envs == 3
    assert [env.spec.id for env in backend.build([4, 5])] == ["CartPole-v1"] * 2


def test_a_spec_is_as_good_as_its_id():
    backend, _, spec = choose(gymnasium.spec("CartPole-v1"))
    assert backend.spec.id == spec.id == "CartPole-v1"


def test_an_id_alone_is_one_env():
    assert choose("CartPole-v1")[1] == 1


def test_an_unknown_id_is_gymnasiums_own_error():
    with pytest.raises(gymnasium.error.NameNotFound):
        choose("NoSuchEnvironment-v0")


def test_other_arguments_go_to_the_env():
    backend, _, _ = choose("CartPole-v1", render_mode="rgb_array")
    assert backend.build([0])[0].render_mode == "rgb_array"


def test_the_spec_is_recorded_as_make_vec_would():
    _, _, spec = choose("CartPole-v1", 2, render_mode="rgb_array")
    recorded = gymnasium.make_vec("CartPole-v1", 2, "sync", render_mode="rgb_array").spec
    assert spec.kwargs["num_envs"] == recorded.kwargs["num_envs"] == 2
    assert spec.kwargs["render_mode"] == recorded.kwargs["render_mode"] == "rgb_array"


def test_the_registry_is_left_alone():
    choose("CartPole-v1", 2, render_mode="rgb_array")
    assert "num_envs" not in gymnasium.spec("CartPole-v1").kwargs


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("num_worker", "num_workers"), ("autoreset_modes", "autoreset_mode"), ("wrapper", "wrappers")],
)
def test_a_misspelt_argument_is_not_passed_to_the_env(wrong, right):
    with pytest.raises(TypeError, match=f"unexpected argument '{wrong}': did you mean '{right}'"):
        choose("CartPole-v1", **{wrong: 1})


# Callables.


def test_a_callable_is_called_once_per_slot():
    backend, num_envs, spec = choose(TinyEnv, 3)
    assert isinstance(backend, CallableBackend)
    assert (num_envs, spec) == (3, None)
    built = backend.build([0, 1, 2])
    assert len({id(env) for env in built}) == 3


def test_a_list_of_callables_says_how_many_envs():
    assert choose([TinyEnv, TinyEnv])[1] == 2


def test_each_slot_gets_its_own_callable():
    made = []
    backend, _, _ = choose([lambda i=i: made.append(i) or TinyEnv() for i in range(4)])
    backend.build([3, 1])
    assert made == [3, 1]


def test_a_worker_gets_only_the_callables_of_its_slots():
    backend, _, _ = choose([TinyEnv] * 5)
    assert sorted(backend.for_slots([3, 4]).factories) == [3, 4]


def test_a_list_that_contradicts_num_envs_is_refused():
    with pytest.raises(ValueError, match="num_envs=3, but 2 callables were given"):
        choose([TinyEnv, TinyEnv], 3)


@pytest.mark.parametrize("env", ["CartPole-v1", TinyEnv, VectorBackend(TinyEnv)])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("step_timeout_s", "step_timeout_s is part of limits now: limits=Limits(step_timeout_s=…)"),
        ("port", "port is part of network now: network=Network(port=…)"),
    ],
)
def test_what_has_moved_to_a_group_is_refused_with_where_it_is(env, name, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        ClusterEnv(env, **{name: 1})


def test_what_is_in_a_group_may_be_misspelt_too():
    with pytest.raises(TypeError, match=re.escape("did you mean limits=Limits(lease_s=…)?")):
        ClusterEnv("CartPole-v1", leases_s=1.0)


@pytest.mark.parametrize("env", [TinyEnv, [TinyEnv], VectorBackend(TinyEnv)])
def test_arguments_for_the_env_go_with_an_id_only(env):
    with pytest.raises(TypeError, match=r"\['gravity'\].*ClusterEnv itself takes env, num_envs"):
        choose(env, gravity=1.0)


@pytest.mark.parametrize("env", ["CartPole-v1", TinyEnv, [TinyEnv]], ids=["id", "callable", "list"])
def test_wrappers_are_applied_first_to_last(env):
    backend, _, _ = choose(env, wrappers=[limit_time, spare_reward])
    built = backend.build([0])[0]
    assert isinstance(built, TransformReward)
    assert isinstance(built.env, TimeLimit)


NO_ENVS = {
    "an empty list": [],
    "a list of envs": [TinyEnv()],
    "an env": TinyEnv(),
    "a number": 5,
    "nothing": None,
}


@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("env", NO_ENVS.values(), ids=NO_ENVS)
def test_what_makes_no_envs_is_refused_with_what_does(env, num_envs):
    with pytest.raises(TypeError, match="env must be a Gymnasium id, a callable, a non-empty list"):
        choose(env, num_envs)


class Parallel:
    """As PettingZoo's parallel envs are."""

    possible_agents = ("a",)

    def reset(self, seed=None, options=None):
        return {}, {}

    def step(self, actions):
        return {}, {}, {}, {}, {}


@pytest.mark.parametrize("launcher", ["local", "in-process"])
def test_an_env_of_pettingzoo_is_refused_with_what_wraps_it(launcher):
    message = r"Parallel is an env of PettingZoo: .* in a clusterenv\.adapters\.pettingzoo\.Petting"
    with pytest.raises(TypeError, match=message):
        ClusterEnv(Parallel, num_envs=2, num_workers=1, launcher=launcher)


def test_a_callable_that_returns_nothing_is_refused():
    with pytest.raises(TypeError, match="returned None: it must return the env that it makes"):
        choose(lambda: None)[0].build([0])


# Backends.


def test_a_backend_is_taken_as_it_is():
    backend = VectorBackend(TinyEnv)
    assert choose(backend, 4) == (backend, 4, None)


def test_a_backend_wraps_its_own_envs():
    with pytest.raises(TypeError, match="a backend wraps its own envs"):
        choose(VectorBackend(TinyEnv), wrappers=[limit_time])


@pytest.mark.parametrize("num_envs", [0, -1])
@pytest.mark.parametrize("env", ["CartPole-v1", TinyEnv, VectorBackend(TinyEnv)])
def test_at_least_one_env_is_needed(env, num_envs):
    with pytest.raises(ValueError, match=f"num_envs={num_envs} must be at least 1"):
        choose(env, num_envs)


# Workers and launchers.


def test_nobody_who_did_not_ask_for_workers_gets_a_number_of_them_here():
    # Each host has as many as it has cores, which is known there.
    assert choose_num_workers(None, 10_000) is None


def test_there_are_never_more_workers_than_envs():
    assert choose_num_workers(5, 1) == 1


def test_num_workers_is_what_was_asked_for():
    assert choose_num_workers(3, 7) == 3


def test_at_least_one_worker_is_needed():
    with pytest.raises(ValueError, match="num_workers=0 must be at least 1"):
        choose_num_workers(0, 4)


@pytest.mark.parametrize(
    ("name", "kind"), [("local", LocalLauncher), ("in-process", InProcessLauncher)]
)
def test_a_launcher_may_be_named(name, kind):
    assert type(choose_launcher(name)) is kind


def test_every_run_gets_a_launcher_of_its_own():
    assert choose_launcher("local") is not choose_launcher("local")


def test_a_launcher_object_is_taken_as_it_is():
    launcher = LocalLauncher()
    assert choose_launcher(launcher) is launcher


def test_an_unknown_launcher_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="launcher='slurm' is unknown: pass 'local', 'in-pro"):
        choose_launcher("slurm")


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registers_odd.py").write_text(
        "import gymnasium\ngymnasium.register('Odd-v7', 'nowhere:Odd')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registration, "registry", dict(registration.registry))
    backend, _, spec = choose("registers_odd:Odd-v7")
    assert backend.spec.id == spec.id == "Odd-v7"


def launcher_of(num_hosts, workers_per_host=None):
    return SimpleNamespace(num_hosts=num_hosts, workers_per_host=workers_per_host)


@pytest.mark.parametrize(
    ("num_workers", "launcher", "expected"),
    [
        (None, launcher_of(3), [None, None, None]),
        (None, launcher_of(3, workers_per_host=16), [16, 16, 16]),
        (8, launcher_of(3, workers_per_host=16), [3, 3, 2]),
        (6, launcher_of(3), [2, 2, 2]),
        (2, launcher_of(3), [1, 1, 1]),
    ],
)
def test_the_launcher_says_how_many_workers_a_host_has_unless_they_are_counted(
    num_workers, launcher, expected
):
    settings = SimpleNamespace(num_workers=num_workers, launcher=launcher)
    assert workers_by_host(settings) == expected


@pytest.mark.parametrize("num_hosts", [0, 1, 4])
def test_by_default_a_run_waits_for_all_hosts(num_hosts):
    assert choose_min_hosts(None, launcher_of(num_hosts)) is None


@pytest.mark.parametrize(("min_hosts", "num_hosts"), [(1, 0), (1, 4), (4, 4)])
def test_a_run_may_start_with_fewer_hosts(min_hosts, num_hosts):
    assert choose_min_hosts(min_hosts, launcher_of(num_hosts)) == min_hosts


@pytest.mark.parametrize(("min_hosts", "num_hosts"), [(0, 4), (-1, 4), (5, 4), (2, 0)])
def test_a_number_of_hosts_that_there_cannot_be_is_refused(min_hosts, num_hosts):
    message = f"min_hosts={min_hosts} must be between 1 and .* which is {max(1, num_hosts)} with"
    with pytest.raises(ValueError, match=message):
        choose_min_hosts(min_hosts, launcher_of(num_hosts))


@pytest.mark.parametrize("launcher", ["local", LocalLauncher()], ids=["a name", "an object"])
def test_a_host_shares_no_memory_with_the_head_where_that_is_not_wanted(launcher):
    assert choose_launcher(launcher, shared_memory=True).num_hosts == 0
    assert choose_launcher(launcher, shared_memory=False).num_hosts == 1


def test_host_processes_that_were_asked_for_share_no_memory_anyway():
    launcher = LocalLauncher(hosts=3)
    assert choose_launcher(launcher, shared_memory=False) is launcher


def test_a_launcher_keeps_its_settings_when_it_gets_a_host_process(tmp_path):
    launcher = LocalLauncher(log_dir=tmp_path, environment={"LEVEL": "3"})
    other = choose_launcher(launcher, shared_memory=False)
    assert other.log_dir == launcher.log_dir
    assert other.worker_environment == {"LEVEL": "3"}


# Sync rule.


class Never:
    """A rule as small as it can be."""

    rows, measure, threshold = 0, "divergence", 0.0

    def cause_to_pull(self, news):
        return None


@pytest.mark.parametrize("rule", [EveryNth(3), EveryVersion(), AdaptiveSync(), Never()])
def test_a_sync_rule_is_taken_as_it_is(rule):
    assert choose_sync_rule(rule) is rule


def test_by_default_workers_pull_every_version():
    assert choose_sync_rule(None) == EveryVersion()


def test_a_rule_that_lacks_something_is_refused_with_what_it_lacks():
    class Lacking:
        def cause_to_pull(self, news):
            return None

    message = r"sync=Lacking.* is not a sync rule: it lacks rows, measure, threshold; .*SyncRule"
    with pytest.raises(TypeError, match=message):
        ClusterEnv("CartPole-v1", sync=Lacking())


def test_the_class_of_a_rule_is_as_good_as_an_object_where_it_needs_no_arguments():
    assert choose_sync_rule(AdaptiveSync) == AdaptiveSync()


def test_the_class_of_a_rule_that_needs_arguments_is_refused_with_their_names():
    with pytest.raises(TypeError, match=r"class that needs n; pass an object: sync=EveryNth\(n=…"):
        choose_sync_rule(EveryNth)


@pytest.mark.parametrize("given", ["adaptive", 3, True])
def test_what_is_no_rule_at_all_is_refused_with_the_rules_that_exist(given):
    message = rf"sync={given!r} is not a sync rule: pass an object such as .*AdaptiveSync\("
    with pytest.raises(TypeError, match=message):
        choose_sync_rule(given)


# What is nearly right.


def test_a_single_wrapper_needs_no_list():
    assert choose("CartPole-v1", wrappers=limit_time)[0].wrappers == (limit_time,)


def test_no_wrappers_may_be_none():
    assert choose("CartPole-v1", wrappers=None)[0].wrappers == ()


@pytest.mark.parametrize(
    ("wrappers", "found"),
    [
        ([limit_time, (TimeLimit, {})], r"wrappers\[1\]=\(<class"),
        ("TimeLimit", r"wrappers\[0\]='T'"),
        (3, "wrappers=3"),
    ],
)
def test_what_is_no_wrapper_is_refused_with_what_is_one(wrappers, found):
    with pytest.raises(TypeError, match=f"{found}.* cannot be called: a wrapper takes an env"):
        choose("CartPole-v1", wrappers=wrappers)


def test_the_class_of_a_launcher_is_as_good_as_an_object_where_it_needs_no_arguments():
    assert type(choose_launcher(LocalLauncher)) is LocalLauncher


def test_the_class_of_a_launcher_that_needs_arguments_is_refused_with_their_names():
    message = r"class that needs hosts; pass an object: launcher=SshLauncher\(hosts=…\)"
    with pytest.raises(TypeError, match=message):
        choose_launcher(SshLauncher)


@pytest.mark.parametrize("given", [None, 4, ["local"]])
def test_what_is_no_launcher_is_refused_with_what_is_one(given):
    words = f"launcher={given!r} is not a launcher: pass 'local', 'in-process', or an"
    message = re.escape(words)
    with pytest.raises(TypeError, match=message):
        choose_launcher(given)


@pytest.mark.parametrize("name", ["num_envs", "num_workers", "batch_size", "min_hosts"])
@pytest.mark.parametrize("value", [2.0, "2", True])
def test_a_number_that_is_not_whole_is_refused_by_name(name, value):
    instead = ": pass 2" if value == 2.0 else ""
    message = re.escape(f"{name}={value!r} must be a whole number") + ".*" + re.escape(instead)
    with pytest.raises(TypeError, match=message):
        ClusterEnv("CartPole-v1", **{"num_envs": 4, name: value})


def test_a_whole_number_may_be_numpys():
    assert choose("CartPole-v1", np.int64(3))[1] == 3


@pytest.mark.parametrize("name", ["limits", "network"])
def test_a_group_is_an_object_of_its_class(name):
    with pytest.raises(TypeError, match=rf"{name}=.* must be a clusterenv.{name.title()}, such as"):
        ClusterEnv("CartPole-v1", **{name: {"lease_s": 1.0}})


def test_an_unknown_autoreset_mode_is_refused_with_those_that_exist():
    message = "autoreset_mode='same' must be one of 'NextStep', 'SameStep'"
    with pytest.raises(ValueError, match=message):
        ClusterEnv("CartPole-v1", autoreset_mode="same")


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("env", [TinyEnv(), Parallel()], ids=["Gymnasium's", "PettingZoo's"])
def test_an_env_that_is_built_already_is_refused_with_what_to_pass_instead(env, num_envs):
    with pytest.raises(TypeError, match="workers build the envs: pass a callable that makes one"):
        choose(env, num_envs)
