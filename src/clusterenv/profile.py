"""Where a run's time went, and what to do about it. Pure: seconds in, shares and advice out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VARIABLE = "CLUSTERENV_PROFILE"
"""If set in the environment, every run is timed and reports at its end where its time went."""
SHARES = (
    *("env", "inference", "serialise", "network", "wait"),
    *("lost", "learner", "head", "import", "other"),
)
RARE = frozenset({"lost", "import"})
"""Tables leave them out where they are nothing."""
MEANINGS = {
    "env": "stepping and resetting envs",
    "inference": "the policy acts",
    "serialise": "actions are read, rows and fragments written for the head",
    "network": "messages, wake-ups and pulls of weights are under way",
    "wait": "for slower workers, in lockstep",
    "lost": "for replacements of workers or hosts that were lost",
    "learner": "the user's own loop, while workers have nothing to do",
    "head": "requests are made, rows assembled",
    "import": "a policy is unpickled, and what it needs imported (PyTorch, say), once per run",
    "other": "the worker's own bookkeeping",
}
FIRST_SLOT = "first_slot"
"""By this name, among a worker's seconds, is the first of its slots."""
_BUSY = ("env", "inference", "serialise", "import", "other")
_ALL = (*_BUSY, "pull", "idle")
_ROUNDED, _LITTLE, _MUCH, _MOST = 0.0005, 0.1, 0.2, 0.5
# Rows of numbers take a few microseconds to write, those with images or long infos far more.
_LARGE_ROW_S = 30e-6


@dataclass(frozen=True)
class Profile:
    """What was measured: seconds by name, for the head and for each worker that stayed."""

    wall_s: float
    """How long it took."""
    steps: int
    """How many rows came back."""
    head: dict[str, float]
    """``learner`` (outside of calls), ``head`` (inside), ``wait`` (for workers), ``lost`` (for
    replacements), and ``inference`` if the head's own forward pass was timed."""
    workers: Sequence[dict[str, float]]
    """``env``, ``inference``, ``serialise``, ``pull``, ``import``, ``other`` and ``idle``; and
    ``behind``, the part of ``idle`` in which others of its host had not answered yet. Besides these
    seconds, ``first_slot``: the first of its slots."""
    behind_s: float
    """How long, on average, a worker that had answered waited for slower ones."""
    calls: frozenset[str]
    """The methods that were used: ``step``, ``rollout`` …"""
    num_envs: int
    """How many slots there are."""
    num_workers: int
    """How many workers there are, those included that were replaced meanwhile."""
    cores: int | None
    """This machine's cores, if workers run here."""
    names: Sequence[str] = ()
    """The name and the slots of each of ``workers``."""
    lost_workers: int = 0
    """How many workers were lost meanwhile …"""
    lost_hosts: int = 0
    """… and how many hosts."""

    @property
    def steps_per_s(self) -> float:
        """The speed of all envs together."""
        return self.steps / self.wall_s if self.wall_s > 0 else 0.0


def shares(profile: Profile) -> dict[str, float]:
    """Where an average worker's time went, as shares that sum to one.

    An idle worker waits for slower ones, for the learner, for the head or for a replacement; time
    that none of them explains was spent in transit. If no worker stayed, only what the head did is
    known, and the shares sum to less than one.
    """
    mean = {name: _seconds_of(profile, name) / max(1, len(profile.workers)) for name in _ALL}
    seconds = {name: mean[name] for name in _BUSY}
    rest = mean["idle"] if profile.workers else profile.wall_s
    for name, wanted in [
        ("wait", profile.behind_s),
        *((name, profile.head.get(name, 0.0)) for name in ("learner", "inference", "head", "lost")),
    ]:
        taken = min(rest, wanted)
        seconds[name] = seconds.get(name, 0.0) + taken
        rest -= taken
    seconds["network"] = rest + mean["pull"] if profile.workers else 0.0
    total = (sum(seconds.values()) if profile.workers else profile.wall_s) or 1.0
    return {name: seconds.get(name, 0.0) / total for name in SHARES}


def _seconds_of(profile: Profile, name: str) -> float:
    """Of all workers together."""
    return sum(worker.get(name, 0.0) for worker in profile.workers)


def advise(profile: Profile) -> list[str]:
    """What to change, most important first."""
    share = shares(profile)
    lost, crowd = _about_losses(profile, share), _about_cores(profile)
    told = [text for text in (lost, crowd) if text]
    if profile.workers:
        told += _by_importance(profile, share)
    return told or ["nothing stands out: this layout suits the run"]


def _by_importance(profile: Profile, share: dict[str, float]) -> list[str]:
    found = [
        (share["learner"], _about_learner(profile, share)),
        (share["wait"], _about_waiting(profile, share)),
        (share["network"] + share["serialise"], _about_moving(profile, share)),
        (share["inference"], _about_inference(profile, share)),
        (share["head"], _about_head(profile, share)),
        (share["import"], _about_import(share)),
        # Not a problem, so always last.
        (0.0, _about_envs(profile, share)),
    ]
    return [text for _, text in sorted(found, key=lambda one: -one[0]) if text]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _about_losses(profile: Profile, share: dict[str, float]) -> str | None:
    counts = [(profile.lost_workers, "worker"), (profile.lost_hosts, "host")]
    lost = [f"{count} {one}{'s' * (count > 1)}" for count, one in counts if count]
    if not lost:
        return None
    was = "was" if profile.lost_workers + profile.lost_hosts == 1 else "were"
    text = f"{' and '.join(lost)} {was} lost"
    if share["lost"] >= 0.01:
        text += f", and the run waited for replacements {_percent(share['lost'])} of the time"
    if not profile.workers:
        text += "; none stayed all the time, so what workers did is not known"
    return f"{text}: envs.ledger.losses says why, and docs/losses.md what to do"


def _about_learner(profile: Profile, share: dict[str, float]) -> str | None:
    if share["learner"] < _MUCH:
        return None
    text = f"workers wait for the learner {_percent(share['learner'])} of the time: "
    busiest, enough = _busiest(profile), _enough_workers(profile)
    if _learns_meanwhile(profile):
        if enough < profile.num_workers:
            return f"{text}they are more than it can use; num_workers={enough} would do"
        busy = _percent(_busy_share(profile.workers[busiest]))
        return (
            f"{text}a faster learner helps; fewer workers would not do, as "
            f"{_name_of(profile, busiest)} is busy {busy} of the time"
        )
    meanwhile = "rollout(policy, num_steps, ahead=1) or stream()"
    text += f"{meanwhile} lets them collect while it learns"
    if share["learner"] >= _MOST and enough < profile.num_workers:
        text += f", and num_workers={enough} would then do"
    return text


def _learns_meanwhile(profile: Profile) -> bool:
    """Whether workers collect while the learner learns: both then take more than all the time."""
    if "stream" in profile.calls:
        return True
    busy_s = _busy_share(profile.workers[_busiest(profile)]) * profile.wall_s
    return profile.head.get("learner", 0.0) + busy_s > (1 + _LITTLE) * profile.wall_s


def _enough_workers(profile: Profile) -> int:
    """How many workers would do if all were as slow as the busiest one."""
    busy = _busy_share(profile.workers[_busiest(profile)])
    return min(profile.num_workers, max(1, math.ceil(profile.num_workers * busy - 0.05)))


def _busiest(profile: Profile) -> int:
    places = range(len(profile.workers))
    return max(places, key=lambda place: _busy_share(profile.workers[place]))


def _busy_share(worker: dict[str, float]) -> float:
    return 1 - _share_of(worker, "idle")


def _share_of(worker: dict[str, float], name: str) -> float:
    return worker.get(name, 0.0) / (sum(worker.get(one, 0.0) for one in _ALL) or 1.0)


def _name_of(profile: Profile, place: int) -> str:
    return profile.names[place] if place < len(profile.names) else "a worker"


def slowest(profile: Profile) -> str | None:
    """The worker that is longest at something, if far longer than the others; else None.

    Shares do not show it: they are averages.
    """
    if len(profile.workers) < 2:
        return None
    found = []
    for name in (*_BUSY, "pull"):
        each = [_share_of(worker, name) for worker in profile.workers]
        others = (sum(each) - max(each)) / (len(each) - 1)
        found.append((max(each) - others, each.index(max(each)), name, max(each), others))
    more, place, name, most, others = max(found)
    if more <= _MUCH + 0.05:
        return None
    told = f"{name} {_percent(most)}, where the others have {_percent(others)}"
    return f"the slowest is {_name_of(profile, place)}: {told}"


def _about_waiting(profile: Profile, share: dict[str, float]) -> str | None:
    if share["wait"] < _MUCH:
        return None
    instead = "async_reset/recv/send with batch_size= takes"
    if "rollout" in profile.calls:
        instead = "stream() or rollout(…, wait_num=) takes"
    return (
        f"workers wait for the slowest of them {_percent(share['wait'])} of the time: {instead} "
        "what is ready, and uneven machines want fewer slots on the slow ones"
    )


def _about_moving(profile: Profile, share: dict[str, float]) -> str | None:
    moving = share["network"] + share["serialise"]
    if moving < _MUCH + 0.05:
        return None
    text = f"moving data takes {_percent(moving)} of the time: "
    collects = bool(profile.calls & {"rollout", "stream"})
    fewer = "infos=False" if collects else "fewer infos"
    row_s = _seconds_of(profile, "serialise") / max(1, profile.steps)
    if share["serialise"] > moving / 2 and row_s > _LARGE_ROW_S:
        return (
            f"{text}mostly writing rows, {1e6 * row_s:.0f} µs each, so rows or infos are large: "
            f"{fewer}, or smaller observations (uint8, fewer frames)"
        )
    if not collects:
        return f"{text}rollout(policy) pays one round trip for many steps, step() one for each"
    if _pull_share(profile) > moving / 2:
        return f"{text}mostly pulls: AdaptiveSync pulls less often, encoding='bf16' halves them"
    return (
        f"{text}longer fragments (num_steps=), {fewer}, or smaller observations (uint8, fewer "
        "frames)"
    )


def _pull_share(profile: Profile) -> float:
    total = sum(_seconds_of(profile, name) for name in _ALL)
    return _seconds_of(profile, "pull") / total if total else 0.0


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


def _about_head(profile: Profile, share: dict[str, float]) -> str | None:
    if share["head"] < _MUCH:
        return None
    fewer = "infos=False" if profile.calls & {"rollout", "stream"} else "envs with fewer infos"
    return (
        f"the head's own work takes {_percent(share['head'])} of the time: longer fragments, "
        f"copy=False, and {fewer}"
    )


def _about_import(share: dict[str, float]) -> str | None:
    if share["import"] < _MUCH:
        return None
    return (
        f"workers import what the policy needs {_percent(share['import'])} of the time: only "
        "before they act for the first time, so it matters less in a longer run"
    )


def _about_envs(profile: Profile, share: dict[str, float]) -> str | None:
    if share["env"] < _MOST:
        return None
    text = f"envs take {_percent(share['env'])} of the time"
    if (waits := _head_waits_little(profile)) is not None:
        return (
            f"{text}, but the head waits for workers only {_percent(waits)} of it: the learner is "
            "the limit, and more workers or cores will not help"
        )
    text += ", as they should: more workers help"
    if profile.cores is not None and profile.num_workers >= profile.cores:
        return f"{text} only on more cores than the {profile.cores} here: ssh, Slurm, Ray"
    wanted = min(profile.num_envs, profile.cores or 2 * profile.num_workers)
    if wanted <= profile.num_workers:
        return f"{text} with more envs than {profile.num_envs}"
    return f"{text}, e.g. num_workers={wanted}"


def _head_waits_little(profile: Profile) -> float | None:
    """What share of the time the head waits, if that is little and the learner takes the rest."""
    learner, *others = (profile.head.get(name, 0.0) for name in ("learner", "head", "inference"))
    if not learner or learner < _MOST * profile.wall_s:
        return None
    waits = max(0.0, 1 - (learner + sum(others)) / profile.wall_s)
    return waits if waits < _LITTLE else None


def _about_cores(profile: Profile) -> str | None:
    if profile.cores is None or profile.num_workers <= profile.cores:
        return None
    return (
        f"{profile.num_workers} workers share {profile.cores} cores and take turns: "
        f"num_workers={profile.cores}"
    )


def shown(profiles: Iterable[Profile]) -> list[str]:
    """The shares that a table of these has."""
    found = [shares(profile) for profile in profiles]
    most = {name: max(share[name] for share in found) for name in SHARES}
    return [name for name in SHARES if name not in RARE or most[name] >= _ROUNDED]


def report(profile: Profile) -> str:
    """The whole profile as text."""
    share, slow = shares(profile), slowest(profile)
    lines = [
        f"{profile.steps} steps in {profile.wall_s:.1f} s: {profile.steps_per_s:.0f} steps/s, "
        f"{profile.num_workers} workers, {profile.num_envs} envs",
        *(f"{name:>10} {100 * share[name]:5.1f} %  {MEANINGS[name]}" for name in shown([profile])),
        *([] if slow is None else [slow]),
    ]
    return "\n".join(lines + [f"-> {line}" for line in advise(profile)])
