"""Turns profiles of several layouts into a table and a recommendation. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from clusterenv.profile import Profile, advise, shares, shown, slowest
from clusterenv.tools.tables import Table, short

# A small gain is not worth changing a loop for.
_WORTH_IT = 1.1
_LINES = {
    "step": "actions = policy(obs); envs.step(actions)",
    "rollout": "rollout = envs.rollout(policy, num_steps)",
    "stream": "for fragment in envs.stream(num_steps): …",
}


def profile_table(what: str, profiles: Mapping[str, Profile]) -> Table:
    """A row per layout."""
    first, names = next(iter(profiles.values())), shown(profiles.values())
    rows = []
    for name, profile in profiles.items():
        share = shares(profile)
        parts = [f"{100 * share[one]:.0f} %" for one in names]
        rows.append((name, short(profile.steps_per_s), *parts))
    layout = f"{first.num_envs} envs on {first.num_workers} workers"
    title = f"{what}: {layout}; what a worker's time goes to"
    return Table(title, ("layout", "steps/s", *names), rows)


def recommend(profiles: Mapping[str, Profile]) -> list[str]:
    """The layout to take, by the measurements, and what would help it further."""
    first, *_ = profiles
    fastest = max(profiles, key=lambda name: profiles[name].steps_per_s)
    if profiles[fastest].steps_per_s < _WORTH_IT * profiles[first].steps_per_s:
        fastest = first
    told = [f"take {fastest}: {_LINES[fastest]}"]
    if fastest != first:
        times = profiles[fastest].steps_per_s / max(1e-9, profiles[first].steps_per_s)
        told[0] += f" is {times:.1f} times as fast as {first} here"
    if fastest == "stream":
        told[0] += (
            "; its fragments may be a few versions old: on-policy learners take rollout, whose "
            "workers collect the next one meanwhile with ahead=1"
        )
    slow = slowest(profiles[fastest])
    lines = advise(profiles[fastest]) + ([] if slow is None else [slow])
    return told + [f"{fastest}: {line}" for line in lines]
