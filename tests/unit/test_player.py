"""The process that plays episodes for `view` draws real envs, and says why where it cannot."""

import base64
import json
import pickle
from itertools import islice
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.backends.gymnasium import CallableBackend, RegisteredBackend
from clusterenv.backends.vector import VectorBackend
from clusterenv.policies.base import Acted
from clusterenv.status.showing import Showing

pytest.importorskip("PIL")

from clusterenv.tools.view import player


class Drawn(gymnasium.Env):
    """Ends after three steps; observations and actions in several parts."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 1000}
    observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (3,))])

    def __init__(self, render_mode=None, picture=None):
        self.render_mode, self.time = render_mode, 0
        self.picture = np.zeros((4, 6, 3), np.uint8) if picture is None else picture

    def reset(self, seed=None, options=None):
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observation_space.sample(), 2.0, self.time == 3, False, {}

    def render(self):
        return self.picture


class Counting:
    """A recurrent policy."""

    def act(self, observations, state, rng):
        assert observations["a"].shape == (1, 2)
        assert rng.uniform().shape == (1, 1)
        actions = np.ones(1, np.int64), np.zeros((1, 3), np.float32)
        return Acted(actions, state=np.zeros((1, 1)) if state is None else state + 1)


def showing(backend):
    return Showing(0, 1, pickle.dumps(backend), b"", b"", (), "")


def drawn(**options):
    return showing(SlotsOf(options))


class SlotsOf:
    """A backend of one's own."""

    def __init__(self, options):
        self.options = options

    def build(self, slots):
        return [Drawn(**self.options) for _ in slots]


def pictures_of(env):
    copy = SimpleNamespace(policy=Counting(), version=7)
    return player.episode_of(env, copy, 0, 0)


def test_an_episode_is_played_to_its_end_and_every_step_is_a_picture():
    shown = list(pictures_of(player.build(drawn(render_mode="rgb_array"))))
    assert [(one["step"], one["total_reward"], one["over"]) for one in shown] == [
        (1, 2.0, False),
        (2, 4.0, False),
        (3, 6.0, True),
    ]
    assert shown[0]["version"] == 7
    assert base64.b64decode(shown[0]["jpeg"]).startswith(b"\xff\xd8")


def test_an_env_by_its_id_draws_itself_without_being_told():
    pytest.importorskip("pygame")
    env = player.build(showing(RegisteredBackend(gymnasium.spec("CartPole-v1"))))
    env.reset(seed=0)
    assert env.render().ndim == 3
    env.close()


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (CallableBackend({0: Drawn}), "render_mode=None: let your function make it with"),
        (VectorBackend(lambda slots: None), "steps its envs together"),
    ],
)
def test_an_env_that_cannot_be_drawn_is_told_with_what_to_do(backend, said, monkeypatch):
    together = lambda self, slots: object()  # noqa: E731
    monkeypatch.setattr(VectorBackend, "build", together)
    monkeypatch.setattr(player.pickle, "loads", lambda data: backend)
    with pytest.raises(player.CannotPlayError, match=said):
        player.build(Showing(0, 1, b"", b"", b"", (), ""))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "run abc has ended, or has no slot 9"),
        ((Showing(9, 0, b"", b"", b"", (), ""), b""), "no policy was published"),
    ],
)
def test_where_nobody_can_play_a_line_says_why(found, said, monkeypatch, capfdbinary):
    monkeypatch.setattr(player, "fetch_showing", lambda run, slot: found)
    monkeypatch.setattr(player, "end_with_input", lambda: None)
    monkeypatch.setattr(player.os, "dup2", lambda one, other: None)
    monkeypatch.setattr(player.sys, "argv", ["player", "abc", "1", "9"])
    player.main()
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert said in json.loads(line)["error"]


def test_what_is_no_picture_is_told():
    env = player.build(drawn(render_mode="rgb_array", picture=np.zeros((4, 6))))
    with pytest.raises(player.CannotPlayError, match=r"float64 of shape \(4, 6\)"):
        list(islice(pictures_of(env), 1))
