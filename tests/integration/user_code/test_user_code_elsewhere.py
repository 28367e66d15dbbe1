"""The user's own modules reach hosts that cannot see the user's files."""

import socket
from importlib.machinery import EXTENSION_SUFFIXES

import psutil
import pytest

from tests.integration.user_code.far_host import Project

HELPERS = """
    import functools
    import threading
    import my_env  # in a circle

    LOCK = threading.Lock()  # cannot be pickled
    CALLS = []

    @functools.lru_cache  # cannot be pickled by value
    def scale(x):
        with LOCK:
            CALLS.append(x)
        return 2.0 * x
"""
MY_ENV = """
    import os, sys
    import gymnasium as gym
    import numpy as np
    from helpers import scale

    class Base(gym.Env):
        observation_space = gym.spaces.Box(-100, 100, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            import lazily  # only when it is needed
            self.t += 1
            bonus = lazily.bonus(action)
            obs = np.array([scale(self.t), bonus], np.float32)
            return obs, float(bonus), self.t >= 5, False, {}

        def where(self):
            import helpers
            found = sys.modules[type(self).__module__]
            return [os.getcwd(), type(found.__loader__).__name__, len(helpers.CALLS)]

        def what_it_is(self, thing):
            return [type(thing).__name__, isinstance(thing, Base), thing.value]

    class MyEnv(Base):
        pass

    class Doubled(gym.RewardWrapper):
        def reward(self, reward):
            return 2 * reward
"""
LAZILY = """
    def bonus(action):
        return float(action)
"""
PROJECT = {"helpers": HELPERS, "my_env": MY_ENV, "lazily": LAZILY}


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    project.write(**PROJECT)
    return project


def test_a_class_beside_the_script_with_what_it_imports(project):
    out, err = project.run(
        """
        import numpy as np
        from my_env import MyEnv
        with ClusterEnv(MyEnv, num_envs=4, num_workers=2, launcher=launcher) as envs:
            envs.reset(seed=0)
            obs, rewards, *_ = envs.step(np.array([0, 1, 0, 1]))
            print(obs.tolist(), rewards.tolist())
            print(sorted({tuple(found) for found in envs.call("where")}))
        """,
        num_hosts=2,
    )
    assert "[[2.0, 0.0], [2.0, 1.0], [2.0, 0.0], [2.0, 1.0]] [0.0, 1.0, 0.0, 1.0]" in out, err
    # The head's folder is not there, so workers stay where they were; one call was not cached.
    assert f"[({str(project.elsewhere)!r}, 'SentModules', 1)]" in out, err


def test_an_id_that_a_module_of_a_package_registers_and_a_policy_of_another(project):
    project.write(
        my_envs_____init__="""
            from gymnasium.envs.registration import WrapperSpec, register
            register(
                id="Mine-v0",
                entry_point="my_envs.grid:Grid",
                additional_wrappers=(WrapperSpec("Doubled", "my_env:Doubled", {}),),
            )
        """,
        my_envs___grid="from .base import Grid\n",
        my_envs___base="from my_env import Base\nclass Grid(Base):\n    pass\n",
        my_policy="""
            import numpy as np
            from clusterenv.distributions import Categorical
            from clusterenv.policies.numpy import NumpyPolicy
            from my_logits import logits

            def act(weights, observations):
                return Categorical(logits(weights["w"], observations))

            def make():
                return NumpyPolicy(act, {"w": np.array([0.0, 50.0])})
        """,
        my_logits="""
            import numpy as np
            def logits(w, observations):
                return np.tile(w, (len(observations), 1))
        """,
        my_rule="""
            from clusterenv import EveryVersion
            class MyRule(EveryVersion):
                pass
        """,
    )
    out, err = project.run(
        """
        import my_policy, my_rule
        make = dict(num_envs=2, num_workers=1, launcher=launcher, sync=my_rule.MyRule())
        with ClusterEnv("my_envs:Mine-v0", **make) as envs:
            envs.reset(seed=0)
            rollout = envs.rollout(my_policy.make(), num_steps=7)
            print("rewards", rollout.rewards.T.tolist())
        """
    )
    assert f"rewards {[[2.0] * 7] * 2}" in out, err


@pytest.mark.parametrize("launcher", ["attach", "local", "hosts"])
def test_an_id_whose_class_and_wrapper_are_in_the_script_itself(project, launcher):
    out, err = project.run(
        """
        import gymnasium as gym, numpy as np
        from gymnasium.envs.registration import WrapperSpec
        from my_env import Base

        class Own(Base):
            pass

        class Wrapped(gym.RewardWrapper):
            def reward(self, reward):
                return reward + 10

        wrapper = WrapperSpec("Wrapped", "__main__:Wrapped", {})
        gym.register("Own-v0", "__main__:Own", additional_wrappers=(wrapper,))
        with ClusterEnv("Own-v0", num_envs=1, launcher=launcher) as envs:
            envs.reset(seed=0)
            print("reward", envs.step(np.array([1]))[1])
        """,
        launcher=launcher,
    )
    assert "reward [11.]" in out, err


@pytest.mark.parametrize("launcher", ["attach", "local"])
def test_an_id_that_comes_with_its_module_and_by_itself_is_no_reason_to_warn(project, launcher):
    """The worker is sent the id, and the module registers it there once more."""
    project.write(
        registering="""
            import warnings
            import gymnasium as gym
            from my_env import Base
            class Own(Base):
                pass
            gym.register("Own-v0", "registering:Own")
            warnings.warn("slippery")
        """
    )
    out, err = project.run(
        """
        import registering
        with ClusterEnv("Own-v0", num_envs=2, num_workers=2, launcher=launcher) as envs:
            envs.reset(seed=0)
            print("reset")
        """,
        launcher=launcher,
    )
    assert "reset" in out, err
    assert "already in registry" not in err
    assert "worker-0.0: slippery" in err


@pytest.mark.parametrize("launcher", ["attach", "local", "hosts"])
def test_a_factory_may_ask_for_an_id_that_only_the_script_registers(project, launcher):
    out, err = project.run(
        """
        import gymnasium as gym, numpy as np
        from my_env import Base

        class Own(Base):
            pass

        gym.register("Own-v0", "__main__:Own")
        with ClusterEnv(lambda: gym.make("Own-v0"), num_envs=1, launcher=launcher) as envs:
            envs.reset(seed=0)
            print("reward", envs.step(np.array([1]))[1])
        """,
        launcher=launcher,
    )
    assert "reward [1.]" in out, err


def test_a_torch_module_that_the_head_measures_and_the_arguments_of_a_call(project):
    project.write(
        nets="""
            import torch
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(2, 2)
                def forward(self, x):
                    return torch.distributions.Categorical(logits=self.layer(x))
        """,
        things="""
            class Thing:
                value = 7
        """,
    )
    out, err = project.run(
        """
        import sys
        import my_env
        from clusterenv import AdaptiveSync
        sync = AdaptiveSync(0.01)
        with ClusterEnv(my_env.MyEnv, num_envs=1, launcher=launcher, sync=sync) as envs:
            import nets, things, torch
            net = nets.Net()
            envs.reset(seed=0)
            for _ in range(3):
                rollout = envs.rollout(net, num_steps=8)
                with torch.no_grad():
                    net.layer.bias[0] += 1.0
            print("shape", rollout.rewards.shape, [type(f).__name__ for f in sys.meta_path])
            print("thing", envs.call("what_it_is", things.Thing()))
        """
    )
    assert "shape (8, 1)" in out, err
    assert "thing (['Thing', False, 7],)" in out, err
    # The head needs nothing of what it sends.
    assert "SentModules" not in out


def test_local_workers_import_the_same_files_as_the_head(project):
    out, err = project.run(
        """
        from my_env import MyEnv
        with ClusterEnv(MyEnv, num_envs=1, launcher=launcher) as envs:
            print(envs.call("where"))
        """,
        launcher="local",
    )
    assert f"([{str(project.folder)!r}, 'SourceFileLoader', 0],)" in out, err


def test_where_the_files_are_the_same_the_worker_uses_them_and_works_there(project):
    out, err = project.run(
        """
        from my_env import MyEnv
        with ClusterEnv(MyEnv, num_envs=1, launcher=launcher) as envs:
            print(envs.call("where"))
        """,
        hide=False,
    )
    assert f"([{str(project.folder)!r}, 'SourceFileLoader', 0],)" in out, err


# What cannot be sent.


def test_another_version_is_said_with_the_machine_and_what_to_do(project):
    project.customize_host(
        """
        import platform
        platform.python_version = lambda: "3.2.1"
        """
    )
    out, err = project.run(
        """
        from clusterenv import Limits
        from my_env import MyEnv
        ClusterEnv(MyEnv, num_envs=1, launcher=launcher, limits=Limits(startup_timeout_s=10))
        """
    )
    assert out == ""
    assert "StartupError: 0 of 1 hosts" in err
    assert f"The head refused a host on machine {socket.gethostname()}: python 3.2.1 on the " in err
    assert "; start hosts with Python 3." in err


def test_a_missing_package_is_named_with_the_machine_and_what_to_do(project):
    project.write(needs_psutil="import psutil\nfrom my_env import MyEnv\n")
    project.hide_package("psutil")
    out, err = project.run(
        """
        from needs_psutil import MyEnv
        def make():
            import needs_psutil
            return MyEnv()
        ClusterEnv(make, num_envs=1, launcher=launcher)
        """
    )
    assert out == ""
    assert "ModuleNotFoundError: No module named 'psutil' on worker-0.0 (pid " in err
    assert f"Run `python -m pip install psutil=={psutil.__version__}` there" in err


def test_a_c_extension_beside_the_script_is_named(project):
    suffix = EXTENSION_SUFFIXES[0]
    (project.folder / f"fast{suffix}").write_bytes(b"")
    out, err = project.run(
        """
        from my_env import MyEnv
        def make():
            import fast
            return MyEnv()
        ClusterEnv(make, num_envs=1, launcher=launcher)
        """
    )
    assert out == ""
    assert "ModuleNotFoundError: No module named 'fast' on worker-0.0 (pid " in err
    assert f"project/fast{suffix} is a C extension, which cannot be sent" in err


def test_a_module_that_fails_to_import_is_named(project):
    project.write(reads_a_file="from pathlib import Path\nPath(__file__ + '.txt').read_text()\n")
    out, err = project.run(
        """
        from my_env import MyEnv
        def make():
            import reads_a_file
            return MyEnv()
        ClusterEnv(make, num_envs=1, launcher=launcher)
        """
    )
    assert out == ""
    assert "while importing 'reads_a_file', which was sent from " in err
    assert "FileNotFoundError: " in err
