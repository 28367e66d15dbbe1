"""What a run is told about its own time is true, and costs nothing where nobody asks."""

import os
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from clusterenv import ClusterEnv, Limits, LocalLauncher
from clusterenv.memory.part_times import PARTS
from clusterenv.policies.numpy import NumpyPolicy
from clusterenv.profile import advise, report, shares, slowest
from clusterenv.status.channel import Run, fetch
from clusterenv.tools.bench_policy import bench_policy
from tests import inside
from tests.integration.heads import ROOT


class Sleepy(gymnasium.Env):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, seconds=0.0):
        self._seconds = seconds

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(self._seconds)
        return np.zeros(3, np.float32), 0.0, False, False, {}


class SlowPolicy(NumpyPolicy):
    def act(self, observations, state, rng):
        time.sleep(0.01)
        return super().act(observations, state, rng)


class SlowToImport(NumpyPolicy):
    """As one of PyTorch is, in a process that has not imported it."""

    def __setstate__(self, state):
        time.sleep(0.3)
        self.__dict__.update(state)


class LargeInfos(Sleepy):
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {"debug": np.zeros(250_000, np.uint8)}


def policy(kind=NumpyPolicy):
    made = bench_policy(Sleepy.observation_space, Sleepy.action_space, 4)
    return kind(made._distribution, made.weights())


def sleepy(*seconds):
    return [lambda s=s: Sleepy(s) for s in seconds]


def largest(result):
    share = shares(result)
    return max(share, key=share.get)


def profiled(envs, body):
    envs.reset(seed=0)
    body(1)
    with envs.profile() as profile:
        body(20)
    return profile.result


@pytest.fixture(params=[True, False], ids=["shared_memory", "tcp"])
def memory(request):
    return request.param


def test_slow_envs_are_seen(memory):
    with ClusterEnv(sleepy(0.01, 0.01), num_workers=2, shared_memory=memory) as envs:
        actions = np.zeros(2, np.int64)
        result = profiled(envs, lambda n: [envs.step(actions) for _ in range(n)])
        assert largest(result) == "env"
        assert result.steps == 40
        assert "step" in result.calls
        assert len(result.workers) == 2
        envs.step(actions)


@pytest.mark.parametrize("may_spin", [True, False])
def test_a_profile_measures_the_shortest_path(may_spin):
    with ClusterEnv("CartPole-v1", num_envs=32, num_workers=2) as envs:
        inside.let_spin(envs, may_spin)
        actions = np.zeros(32, np.int64)
        envs.reset(seed=0)
        envs.step(actions)
        with envs.profile() as profile:
            assert inside.is_timed(envs)
            envs.step(actions)
            detours = inside.note_full_begins(envs)
            for _ in range(300):
                envs.step(actions)
        # A worker that gets no core for long is waited for in another way.
        assert len(detours) < 30 or not inside.MAY_SPIN
        result = profile.result
        assert result.steps == 301 * 32
        assert shares(result)["other"] < 0.15
        for seconds in result.workers:
            total = sum(seconds[part] for part in PARTS)
            assert total == pytest.approx(result.wall_s, rel=0.1, abs=0.05)
            assert 0 <= seconds["behind"] <= result.wall_s
        assert sum(result.head.values()) == pytest.approx(result.wall_s, rel=0.1)
        # Where nobody asks, nobody counts.
        assert not inside.is_timed(envs)


def test_a_forward_pass_at_the_head_can_be_told_apart():
    with ClusterEnv(sleepy(0, 0), num_workers=2) as envs:
        envs.reset()
        with envs.profile() as profile:
            for _ in range(5):
                with profile.inference():
                    time.sleep(0.02)
                envs.step(np.zeros(2, np.int64))
        assert profile.result.head["inference"] > 0.09
        assert largest(profile.result) == "inference"


@pytest.mark.parametrize("may_spin", [True, False, None])
def test_the_head_waits_for_partial_batches(may_spin):
    memory = may_spin is not None
    with ClusterEnv(sleepy(0.01, 0.01), num_workers=2, shared_memory=memory, batch_size=1) as envs:
        if memory:
            inside.let_spin(envs, may_spin)
        with envs.profile() as profile:
            envs.async_reset(seed=0)
            for _ in range(20):
                *_, info = envs.recv()
                envs.send(np.zeros(1, np.int64), info["env_id"])
        seconds = profile.result.head
        assert seconds["wait"] > 0.05
        assert seconds["wait"] > seconds["head"]
        assert {"recv", "send"} <= profile.result.calls


def test_a_slow_learner_is_seen():
    with ClusterEnv(sleepy(0, 0), num_workers=2) as envs:
        acting = policy()
        result = profiled(
            envs, lambda n: [(envs.rollout(acting, 2), time.sleep(0.05)) for _ in range(n)]
        )
        assert largest(result) == "learner"
        assert result.head["learner"] > 0.9


def test_a_slow_worker_is_seen_as_waiting_for_it():
    with ClusterEnv(sleepy(0, 0, 0, 0.02), num_workers=4) as envs:
        acting = policy()
        result = profiled(envs, lambda n: [envs.rollout(acting, 2) for _ in range(n)])
        assert len(result.workers) == 4
        # Three of four wait nearly all of the time.
        assert largest(result) == "wait"
        assert shares(result)["env"] < 0.45
        assert "worker-3.0 (slot 3): env " in report(result)


def test_a_slow_policy_is_seen_on_the_workers_and_in_a_stream():
    with ClusterEnv(sleepy(0, 0), num_workers=2) as envs:
        acting = policy(SlowPolicy)

        def stream(number):
            envs.reset()
            envs.publish(acting)
            for count, _ in enumerate(envs.stream(2), 1):
                if count >= number:
                    break

        result = profiled(envs, stream)
        assert "stream" in result.calls
        assert largest(result) == "inference"


def test_a_worker_that_was_replaced_does_not_count():
    with ClusterEnv(sleepy(0, 0), num_workers=2) as envs:
        envs.reset()
        with envs.profile() as profile:
            for number in range(5):
                if number == 2:
                    os.kill(inside.worker_pid(envs, "worker-1.0"), 9)
                envs.step(np.zeros(2, np.int64))
        result = profile.result
        assert len(result.workers) == 1
        assert result.names == ["worker-0.0 (slot 0)"]
        assert result.lost_workers == 1
        assert result.head["lost"] > 0.05
        assert largest(result) == "lost"
        assert "-> 1 worker was lost, and the run waited for replacements" in str(profile)


def test_the_time_before_a_policy_acts_is_counted_once():
    with ClusterEnv(sleepy(0, 0.02), num_workers=2) as envs:
        acting = policy(SlowToImport)
        with envs.profile() as profile:
            envs.reset(seed=0)
            for _ in range(3):
                # Asked again at once, before the slower worker goes on.
                envs.rollout(acting, 4)
            time.sleep(0.1)
        result = profile.result
        assert all(seconds["import"] > 0.5 for seconds in result.workers)
        assert all(seconds["other"] < 0.1 for seconds in result.workers)
        assert result.behind_s < 0.4
        learned = result.head["learner"] / result.wall_s
        assert shares(result)["learner"] == pytest.approx(learned, abs=0.03)


def test_large_infos_are_told_from_pulls():
    with ClusterEnv(LargeInfos, num_envs=4, num_workers=2) as envs:
        acting = policy()
        result = profiled(envs, lambda n: [envs.rollout(acting, 8) for _ in range(n)])
        told = " ".join(advise(result))
        assert "infos=False" in told
        assert "pulls" not in told


def test_workers_of_several_hosts_are_asked():
    with ClusterEnv(sleepy(0, 0, 0, 0.01), num_workers=4, launcher=LocalLauncher(hosts=2)) as envs:
        actions = np.zeros(4, np.int64)
        result = profiled(envs, lambda n: [envs.step(actions) for _ in range(n)])
        assert len(result.workers) == 4
        assert sorted(seconds["env"] > 0.1 for seconds in result.workers) == [False] * 3 + [True]
        assert "worker-1.0 of host-1.0 (slot 3): env " in slowest(result)
        assert result.steps == 80
        assert result.head["wait"] > 0.1


def test_a_host_that_was_lost_does_not_count():
    limits = Limits(lease_s=5.0)
    with ClusterEnv(
        sleepy(0, 0), num_workers=2, launcher=LocalLauncher(hosts=2), limits=limits
    ) as envs:
        envs.reset()
        with envs.profile() as profile:
            for number in range(5):
                if number == 2:
                    os.kill(fetch(Run(envs.run_id, os.getpid())).hosts[1].pid, 9)
                envs.step(np.zeros(2, np.int64))
        assert len(profile.result.workers) == 1
        assert profile.result.lost_hosts == 1
        assert profile.result.head["lost"] > 0.05


def test_an_error_within_leaves_no_profile_and_no_timers():
    with ClusterEnv(sleepy(0), num_workers=1) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError), envs.profile() as profile:
            raise ZeroDivisionError
        assert profile.result is None
        assert str(profile) == "still running"
        assert not inside.is_timed(envs)
        envs.step(np.zeros(1, np.int64))


def clusterenv(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "clusterenv", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=100,
        **options,
    )


def test_bench_of_an_env_compares_layouts():
    arguments = ["--num-envs", "4", "--num-workers", "2", "--seconds", "0.5", "--learner-ms", "1"]
    done = clusterenv("bench", "CartPole-v1", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "4 envs on 2 workers" in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == ["step", "rollout", "stream"]
    assert lines[5].startswith("-> take ")


@pytest.mark.parametrize("ending", ["envs.close()", "", "del envs"], ids=repr)
def test_bench_of_a_script_tells_at_its_end(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom clusterenv import ClusterEnv\n"
        "envs = ClusterEnv('CartPole-v1', num_envs=4, num_workers=2)\nenvs.reset()\n"
        "for _ in range(int(sys.argv[2])):\n    envs.step(envs.action_space.sample())\n"
        f"print('done')\n{ending}\n"
    )
    done = clusterenv("bench", str(script), "--", "--steps", "50")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "clusterenv profile of run" in done.stderr
    assert "204 steps in" in done.stderr
    assert done.stderr.count("profile") == 1


def test_bench_of_several_hosts_compares_layouts():
    arguments = ["--num-envs", "4", "--num-workers", "2", "--seconds", "0.5"]
    launcher = "clusterenv:LocalLauncher(hosts=2)"
    done = clusterenv("bench", "CartPole-v1", "--launcher", launcher, *arguments)
    assert done.returncode == 0, done.stderr
    assert "4 envs on 2 workers" in done.stdout


def test_bench_says_what_is_wrong_with_its_arguments():
    done = clusterenv("bench", "CartPole-v1", "--launcher", "nowhere:Launcher")
    assert done.returncode == 1
    assert "No module named 'nowhere'" in done.stderr


def test_bench_says_of_an_unknown_id_what_doctor_says():
    done, doctor = clusterenv("bench", "Nope-v0"), clusterenv("doctor", "--env", "Nope-v0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = done.stderr.strip().removeprefix("clusterenv bench: ")
    assert said.startswith("this machine does not know 'Nope-v0' (NameNotFound: ")
    assert said.replace("): write", ") -> write") in doctor.stdout


def test_bench_says_why_it_measures_steps_only(tmp_path):
    (tmp_path / "dicts.py").write_text(
        "import gymnasium as gym\n"
        "class Env(gym.Env):\n"
        "    observation_space = gym.spaces.Dict({'x': gym.spaces.Discrete(3)})\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, **_): return {'x': 0}, {}\n"
        "    def step(self, _): return {'x': 0}, 0.0, False, False, {}\n"
        "gym.register('Dicts-v0', entry_point='dicts:Env')\n"
    )
    arguments = ["--num-envs", "2", "--num-workers", "1", "--seconds", "0.2"]
    done = clusterenv("bench", "dicts:Dicts-v0", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-> rollout and stream were not measured: " in done.stdout
    assert "these are Dict and Discrete" in done.stdout
