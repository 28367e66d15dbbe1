"""A process that plays episodes of a slot with the newest policy, and prints pictures of them.

It has its own env: those of the run are not touched. Once it plays, it gives way to the run:
pictures come as fast as the remaining cores allow. It ends with the process that started it. The
one place that needs Pillow.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pickle
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import gymnasium
import msgspec
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from clusterenv.lifelines import end_with_input
from clusterenv.policies.copy import PolicyCopy
from clusterenv.randomness import SlotRandom
from clusterenv.status.channel import Run, fetch_showing
from clusterenv.status.showing import Showing
from clusterenv.surroundings import settle

_MOST_PIXELS = 640
_MOST_FPS = 30.0
_QUALITY = 80
_PAUSE_S = 0.7
_NICENESS = 19


class CannotPlayError(Exception):
    """There is nothing to see, for this reason."""


def main() -> None:
    """``RUN PID SLOT``: a line of JSON for each picture."""
    end_with_input()
    run, slot = Run(sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
    # The viewer may have seen enough.
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as pictures:
        # What the env prints must not come between the pictures.
        os.dup2(2, 1)
        _play_or_say_why_not(run, slot, pictures)


def _play_or_say_why_not(run: Run, slot: int, pictures: BinaryIO) -> None:
    try:
        _play(run, slot, pictures)
    except BrokenPipeError:
        raise
    except CannotPlayError as error:
        _say(pictures, {"error": str(error)})
    except Exception as error:
        _say(pictures, {"error": f"the env or the policy failed here: {error!r}"})


def _play(run: Run, slot: int, pictures: BinaryIO) -> None:
    showing, weights = _fetch(run, slot)
    settle(showing.search_path, showing.working_directory)
    copy = PolicyCopy(pickle.loads(showing.policy), showing.layout)
    policy = showing.policy
    env = build(showing)
    os.nice(_NICENESS)
    for episode in range(sys.maxsize):
        copy.take(showing.version, weights)
        for picture in episode_of(env, copy, slot, episode):
            _say(pictures, picture)
        time.sleep(_PAUSE_S)
        showing, weights = _fetch(run, slot)
        if showing.policy != policy:
            copy, policy = PolicyCopy(pickle.loads(showing.policy), showing.layout), showing.policy


def _fetch(run: Run, slot: int) -> tuple[Showing, bytes]:
    found = fetch_showing(run, slot)
    if found is None:
        raise CannotPlayError(f"run {run.id} has ended, or has no slot {slot}")
    if found[0].version == 0:
        raise CannotPlayError(
            "no policy was published: the head computes the actions itself, and only rollout, "
            "stream, publish and step(policy) let others act"
        )
    return found


def build(showing: Showing) -> gymnasium.Env[Any, Any]:
    """An env like the slot's, with rendering."""
    backend = pickle.loads(showing.backend)
    rendering = getattr(backend, "rendering", None)
    built = (rendering() if rendering else backend).build((showing.slot,))
    if not isinstance(built, list):
        raise CannotPlayError(f"{type(backend).__name__} steps its envs together: none to look at")
    env: gymnasium.Env[Any, Any] = built[0]
    if env.render_mode != "rgb_array":
        raise CannotPlayError(
            f"the env has render_mode={env.render_mode!r}: let your function make it with "
            "render_mode='rgb_array'"
        )
    return env


def episode_of(
    env: gymnasium.Env[Any, Any], copy: PolicyCopy, slot: int, episode: int
) -> Iterator[dict[str, Any]]:
    """Play one episode at the env's own frame rate, as the run would play it."""
    space, actions = env.observation_space, batch_space(env.action_space, 1)
    rng, seed = SlotRandom(episode, (slot,)), int(time.time()) + episode
    observation, _ = env.reset(seed=seed)
    state, total, step, is_over = None, 0.0, 0, False
    pause_s = 1 / min(_MOST_FPS, float(env.metadata.get("render_fps") or _MOST_FPS))
    due = time.monotonic()
    while not is_over:
        rng.go_to(step)
        empty: Any = create_empty_array(space, 1)
        batched = concatenate(space, [observation], empty)
        acted = copy.policy.act(batched, state, rng)
        action, state = next(iter(iterate(actions, acted.actions))), acted.state
        observation, reward, terminated, truncated, _ = env.step(action)
        total, step, is_over = total + float(reward), step + 1, bool(terminated or truncated)
        due = max(due + pause_s, time.monotonic())
        yield {
            "jpeg": _jpeg(env.render()),
            **{"step": step, "total_reward": total, "version": copy.version, "over": is_over},
        }
        time.sleep(max(0.0, due - time.monotonic()))


def _jpeg(picture: Any) -> str:
    try:
        from PIL import Image
    except ImportError as error:
        raise CannotPlayError("pictures need Pillow: pip install 'clusterenv[view]'") from error
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise CannotPlayError(
            f"env.render() returned {array.dtype} of shape {array.shape}: expected uint8 of shape "
            "(height, width, 3)"
        )
    image, data = Image.fromarray(array), io.BytesIO()
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    image.save(data, "JPEG", quality=_QUALITY)
    return base64.b64encode(data.getvalue()).decode()


def _say(pictures: BinaryIO, what: dict[str, Any]) -> None:
    pictures.write(msgspec.json.encode(what) + b"\n")
    pictures.flush()


if __name__ == "__main__":
    main()
