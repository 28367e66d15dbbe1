"""Where a run's time went, and what to do about it. Pure: seconds in, shares and advice out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "CLUSTERENV_PROFILE"
"""If set in the environment, every run is timed and reports at its end where its time went."""
SHARES = ("env", "inference", "serialise", "network", "wait", "learner", "head", "other")
MEANINGS = {
    "env": "stepping and resetting envs",
    "inference": "the policy acts",
    "serialise": "actions are read, rows and fragments written for the head",
    "network": "messages, wake-ups and pulls of weights are under way",
    "wait": "for slower workers, in lockstep",
    "learner": "the user's own loop, while workers have nothing to do",
    "head": "requests are made, rows assembled",
    "other": "the worker's own bookkeeping",
}
_BUSY = ("env", "inference", "serialise", "other")
_ALL = (*_BUSY, "pull", "idle")
_MUCH, _MOST = 0.2, 0.5


@dataclass(frozen=True)
class Profile:
    """What was measured: seconds by name, for the head and for each worker that stayed."""

    wall_s: float
    steps: int
    """How many rows came back."""
    head: dict[str, float]
    """``learner`` (outside of calls), ``head`` (inside), ``wait`` (for workers), and
    ``inference`` if the head's own forward pass was timed."""
    workers: Sequence[dict[str, float]]
    """``env``, ``inference``, ``serialise``, ``pull``, ``other`` and ``idle``; and ``behind``, the
    part of ``idle`` in which others of its host had not answered yet."""
    behind_s: float
    """How long, on average, a worker that had answered waited for slower ones."""
    calls: frozenset[str]
    """The methods that were used: ``step``, ``rollout`` …"""
    num_envs: int
    num_workers: int
    cores: int | None
    """This machine's cores, if workers run here."""

    @property
    def steps_per_s(self) -> float:
        """The speed of all envs together."""
        return self.steps / self.wall_s if self.wall_s > 0 else 0.0


def shares(profile: Profile) -> dict[str, float]:
    """Where an average worker's time went, as shares that sum to one.

    An idle worker waits for slower ones, for the learner or for the head; time that none of them
    explains was spent in transit.
    """
    count = max(1, len(profile.workers))
    mean = {name: sum(worker.get(name, 0.0) for worker in profile.workers) / count for name in _ALL}
    seconds = {name: mean[name] for name in _BUSY}
    rest = mean["idle"]
    at_head = profile.head
    for name, wanted in [
        ("wait", profile.behind_s),
        ("learner", at_head.get("learner", 0.0)),
        ("inference", at_head.get("inference", 0.0)),
        ("head", at_head.get("head", 0.0)),
    ]:
        taken = min(rest, wanted)
        seconds[name] = seconds.get(name, 0.0) + taken
        rest -= taken
    seconds["network"] = rest + mean["pull"]
    total = sum(seconds.values()) or 1.0
    return {name: seconds.get(name, 0.0) / total for name in SHARES}


def advise(profile: Profile) -> list[str]:
    """What to change, most important first."""
    share = shares(profile)
    found = [
        (share["learner"], _about_learner(profile, share)),
        (share["wait"], _about_waiting(profile, share)),
        (share["network"] + share["serialise"], _about_network(profile, share)),
        (share["inference"], _about_inference(profile, share)),
        (share["head"], _about_head(share)),
        # Not a problem, so always last.
        (0.0, _about_envs(profile, share)),
    ]
    told = [text for _, text in sorted(found, key=lambda one: -one[0]) if text]
    if (crowd := _about_cores(profile)) is not None:
        told.insert(0, crowd)
    return told or ["nothing stands out: this layout suits the run"]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _about_learner(profile: Profile, share: dict[str, float]) -> str | None:
    if share["learner"] < _MUCH:
        return None
    enough = max(1, round(profile.num_workers * (1 - share["learner"])))
    text = f"workers wait for the learner {_percent(share['learner'])} of the time: "
    if "stream" in profile.calls:
        return f"{text}they are more than it can use; num_workers={enough} would do"
    text += "stream() lets them collect while it learns"
    if share["learner"] >= _MOST and enough < profile.num_workers:
        text += f", and num_workers={enough} would then do"
    return text


def _about_waiting(profile: Profile, share: dict[str, float]) -> str | None:
    if share["wait"] < _MUCH:
        return None
    instead = "stream()" if "rollout" in profile.calls else "async_reset/recv/send with batch_size="
    return (
        f"workers wait for the slowest of them {_percent(share['wait'])} of the time: {instead} "
        "takes what is ready, and uneven machines want fewer slots on the slow ones"
    )


def _about_network(profile: Profile, share: dict[str, float]) -> str | None:
    moving = share["network"] + share["serialise"]
    if moving < _MUCH + 0.05:
        return None
    text = f"moving data takes {_percent(moving)} of the time: "
    if not profile.calls & {"rollout", "stream"}:
        return f"{text}rollout(policy) pays one round trip for many steps, step() one for each"
    if _pull_share(profile) > share["network"] / 2:
        return f"{text}mostly pulls: AdaptiveSync pulls less often, encoding='bf16' halves them"
    return f"{text}longer fragments (num_steps=), or smaller observations (uint8, fewer frames)"


def _pull_share(profile: Profile) -> float:
    total = sum(worker.get(name, 0.0) for worker in profile.workers for name in _ALL)
    return sum(worker.get("pull", 0.0) for worker in profile.workers) / total if total else 0.0


def _about_inference(profile: Profile, share: dict[str, float]) -> str | None:
    if share["inference"] < _MUCH or share["inference"] < share["env"]:
        return None
    acts, steps = _percent(share["inference"]), _percent(share["env"])
    text = f"the policy takes {acts} of the time, and the envs take {steps}."
    if profile.head.get("inference", 0.0) > 0:
        return f"{text} rollout(policy) spreads the acting over the workers; a GPU shortens it"
    slots = -(-profile.num_envs // profile.num_workers)
    return (
        f"{text} A larger batch takes hardly longer, so try more envs per worker than {slots}. If "
        "the network is large, try step() with the policy on a GPU at the head"
    )


def _about_head(share: dict[str, float]) -> str | None:
    if share["head"] < _MUCH:
        return None
    return (
        f"the head's own work takes {_percent(share['head'])} of the time: longer fragments, "
        "copy=False, and envs with fewer infos"
    )


def _about_envs(profile: Profile, share: dict[str, float]) -> str | None:
    if share["env"] < _MOST:
        return None
    text = f"envs take {_percent(share['env'])} of the time, as they should: more workers help"
    if profile.cores is not None and profile.num_workers >= profile.cores:
        return f"{text} only on more cores than the {profile.cores} here: ssh, Slurm, Ray"
    wanted = min(profile.num_envs, profile.cores or 2 * profile.num_workers)
    if wanted <= profile.num_workers:
        return f"{text} with more envs than {profile.num_envs}"
    return f"{text}, e.g. num_workers={wanted}"


def _about_cores(profile: Profile) -> str | None:
    if profile.cores is None or profile.num_workers <= profile.cores:
        return None
    return (
        f"{profile.num_workers} workers share {profile.cores} cores and take turns: "
        f"num_workers={profile.cores}"
    )


def report(profile: Profile) -> str:
    """The whole profile as text."""
    share = shares(profile)
    lines = [
        f"{profile.steps} steps in {profile.wall_s:.1f} s: {profile.steps_per_s:.0f} steps/s, "
        f"{profile.num_workers} workers, {profile.num_envs} envs",
        *(f"{name:>10} {100 * share[name]:5.1f} %  {MEANINGS[name]}" for name in SHARES),
    ]
    return "\n".join(lines + [f"-> {line}" for line in advise(profile)])
