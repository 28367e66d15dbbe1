"""How far the newest policy is from the copies that act: measured here, judged on the hosts.

A host cannot measure its distance from weights that it does not have. The head can: it has the
newest weights, and from each host rows that its copy acted on.
"""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import Space

from clusterenv.arrays import Array
from clusterenv.distributions import Distribution, divergence_of_log_probs
from clusterenv.head.publisher import Publication
from clusterenv.plain.spaces import join_leaves, leaves_of
from clusterenv.policies import recurrent
from clusterenv.policies.base import Policy
from clusterenv.policies.copy import PolicyCopy
from clusterenv.protocol.fragments import FragmentPart
from clusterenv.protocol.policies import TakePolicy
from clusterenv.protocol.requests import Measured
from clusterenv.sync import SyncRule

# A recurrent policy is unrolled for this many steps: rows deep in a fragment cost too much.
_UNROLLED_STEPS = 16

Accuse = Callable[[str, int, Exception], bool]
"""Called with a host on whose rows the policy of this id cannot be measured, and the error.
Returns whether that is the host's fault, which the callee then deals with."""


@dataclass(frozen=True)
class _Rows:
    """Some rows on which a host's copy acted: leaves and arrays [k, …], or [T, k, …]."""

    version: int
    observations: list[Array]
    actions: list[Array]
    log_prob: Array
    behaviour: dict[str, Array]
    """The parameters of what the actions were drawn from; empty if they did not come back."""
    state: Any = None
    """The recurrent state before the first step …"""
    ended: Array | None = None
    """… and where episodes ended, [T, k]."""


@dataclass
class _Entry:
    """What is known about one host."""

    parts: dict[int, _Rows]
    """Rows of one version, by the first slot of the fragment that they are from."""
    measured: Measured | None = None
    at_version: int = 0

    @cached_property
    def rows(self) -> _Rows:
        """The rows of all parts; for sequences, which are costly, only those of the latest part."""
        *others, latest = self.parts.values()
        # Rows of steps lack the parameters that rows of fragments bring.
        alike = [one for one in others if one.behaviour.keys() == latest.behaviour.keys()]
        return latest if latest.ended is not None or not alike else _join([*alike, latest])

    def is_due(self, newest: int, sparingly: bool) -> bool:
        """Whether to measure: at every version; or sparingly, whenever the lag has doubled."""
        if not sparingly:
            return max(self.rows.version, self.at_version) < newest
        lag = newest - self.rows.version
        return lag > 0 and lag >= 2 * max(0, self.at_version - self.rows.version)


@dataclass(frozen=True)
class Survey:
    """What was found about one host."""

    measured: Measured
    realised: float | None


class NoDistributionError(TypeError):
    """The user's policy does not say what it draws from."""


class DivergenceMeter:
    """Keeps rows of each host, and measures on them when there is a new version.

    It needs at most one batched forward pass per publish, and one more for new rows on which a
    copy that was behind acted. Sparingly, it needs per host and fragment at most the logarithm
    of the number of publishes in between.
    """

    def __init__(
        self,
        rule: SyncRule,
        observation_space: Space[Any],
        action_space: Space[Any],
        accuse: Accuse = lambda host, policy_id, error: False,
    ) -> None:
        self._rule, self._accuse = rule, accuse
        self._observation_space, self._action_space = observation_space, action_space
        self._leaf_counts = len(leaves_of(observation_space)), len(leaves_of(action_space))
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._copy: PolicyCopy | None = None
        self._policy_id = 0

    def latest(self, host: str) -> Measured | None:
        """The latest measurement for this host."""
        entry = self._entries.get(host)
        return None if entry is None else entry.measured

    def forget(self, host: str) -> None:
        """Forget a host that is gone."""
        self._entries.pop(host, None)

    def note_fragment(self, host: str, num_slots: int, part: FragmentPart) -> None:
        """Take rows of a fragment of some of a host's slots."""
        if "outputs/log_prob" not in part.arrays:
            return
        has_state = any(name.startswith("state/") for name in part.arrays)
        count = max(1, self._rule.rows * len(part.slots) // num_slots)
        rows = self._sequences(part, count) if has_state else self._scattered(part, count)
        before = self._entries.get(host)
        parts = {} if before is None else dict(before.parts)
        parts.pop(part.slots[0], None)
        parts = {slot: one for slot, one in parts.items() if one.version == part.version}
        self._entries[host] = _Entry({**parts, part.slots[0]: rows})

    def note_step(
        self,
        host: str,
        first_slot: int,
        observations: list[Array],
        actions: list[Array],
        acted: dict[str, Any],
    ) -> None:
        """Take the rows of a step with the policy: what it acted on, and what it did."""
        if "log_prob" in acted:
            version = int(acted["version"][0])
            rows = _Rows(version, observations, actions, acted["log_prob"], {})
            before = self._entries.get(host)
            if before is None or before.rows.version != version:
                self._entries[host] = _Entry({first_slot: rows})
                return
            # Steps come much more often than fragments, so the measurement is kept.
            parts = {**before.parts, first_slot: rows}
            self._entries[host] = _Entry(parts, before.measured, before.at_version)

    def measure(self, newest: Publication, sparingly: bool) -> dict[str, Survey]:
        """Measure where a measurement is due; the results by host."""
        with self._lock, np.errstate(all="ignore"):
            due = self._due(newest, sparingly)
            if not due:
                return {}
            if self._policy_id != newest.policy.policy_id:
                self._take_policy(newest.policy)
            realised = self._realised(due)
            assert self._copy is not None
            self._copy.take(newest.version, newest.snapshot.vector)
            found = self._compare_all({host: entry.rows for host, entry in due.items()})
            surveys = {}
            for host, measured in found.items():
                due[host].at_version = newest.version
                if measured is not None:
                    due[host].measured = measured
                    surveys[host] = Survey(measured, realised.get(host))
            return surveys

    def _due(self, newest: Publication, sparingly: bool) -> dict[str, _Entry]:
        due = {}
        for host, entry in list(self._entries.items()):
            try:
                version = entry.rows.version
            except Exception as error:
                self._give_up(host, newest.policy.policy_id, error)
                continue
            if version < newest.policy_since:
                # Another policy altogether: nothing to compare.
                entry.measured = Measured(version, math.inf, 0.0, 0.0)
            elif entry.is_due(newest.version, sparingly):
                due[host] = entry
        return due

    def _give_up(self, host: str, policy_id: int, error: Exception) -> None:
        """Give up on rows of this host; raise the error if it is the user's and not the host's."""
        self.forget(host)
        if isinstance(error, NoDistributionError) or not self._accuse(host, policy_id, error):
            raise error

    def _take_policy(self, take: TakePolicy) -> None:
        self._copy = PolicyCopy(pickle.loads(take.policy), take.layout)
        self._policy_id = take.policy_id

    def _realised(self, due: dict[str, _Entry]) -> dict[str, float]:
        """Compare new rows with the version that was newest when they were collected."""
        assert self._copy is not None
        before = self._copy.version
        fresh = {p: e.rows for p, e in due.items() if not e.at_version and e.rows.version < before}
        found = self._compare_all(fresh)
        for host in fresh.keys() - found.keys():
            del due[host]
        return {host: m.divergence for host, m in found.items() if m is not None}

    # Which rows to keep.

    def _scattered(self, part: FragmentPart, count: int) -> _Rows:
        """Rows from all over the fragment, always the same ones."""
        steps, slots = part.arrays["rewards"].shape
        count = min(count, steps * slots)
        # Multiples of the golden ratio spread evenly, however many of them are taken.
        spread = np.argsort(np.arange(steps * slots) * 0.6180339887498949 % 1)[:count]
        t, column = np.divmod(np.sort(spread), slots)
        return _map(self._rows(part), lambda array: array[t, column])

    def _sequences(self, part: FragmentPart, count: int) -> _Rows:
        """The first steps of some columns, for a policy that has to be unrolled."""
        steps, slots = part.arrays["rewards"].shape
        length = min(steps, _UNROLLED_STEPS)
        count = min(slots, max(1, count // length))
        columns = np.arange(count) * slots // count
        state = {
            name.removeprefix("state/"): array[columns]
            for name, array in part.arrays.items()
            if name.startswith("state/")
        }
        ended = part.arrays["terminated"] | part.arrays["truncated"]
        return replace(
            _map(self._rows(part), lambda array: array[:length, columns]),
            state=state.get("", state),
            ended=ended[:length, columns],
        )

    def _rows(self, part: FragmentPart) -> _Rows:
        """All rows of a fragment."""
        arrays, steps = part.arrays, len(part.arrays["rewards"])
        observation_leaves, action_leaves = self._leaf_counts
        return _Rows(
            part.version,
            [arrays[f"observations/{leaf}"][:steps] for leaf in range(observation_leaves)],
            [arrays[f"actions/{leaf}"] for leaf in range(action_leaves)],
            arrays["outputs/log_prob"],
            {
                name.removeprefix("distribution/"): array
                for name, array in arrays.items()
                if name.startswith("distribution/")
            },
        )

    # Comparing.

    def _compare_all(self, many: dict[str, _Rows]) -> dict[str, Measured | None]:
        """By host, where possible: all at once, or one by one to find whose fault an error is."""
        assert self._copy is not None
        policy = self._copy.policy
        if not many:
            return {}
        try:
            return dict(zip(many, self._compare(policy, list(many.values())), strict=True))
        except Exception:
            found = {}
            for host, rows in many.items():
                try:
                    found[host] = self._compare(policy, [rows])[0]
                except Exception as error:
                    self._give_up(host, self._policy_id, error)
            return found

    def _compare(self, policy: Policy, many: Sequence[_Rows]) -> list[Measured | None]:
        if many[0].ended is not None:
            return [self._measured(rows, *self._unroll(policy, rows)) for rows in many]
        if len({frozenset(rows.behaviour) for rows in many}) > 1:
            return [self._compare(policy, [rows])[0] for rows in many]
        together = _join(many)
        found = self._divergences(policy, together, None)
        if found is None:
            return [None] * len(many)
        cuts = np.cumsum([len(rows.log_prob) for rows in many])[:-1]
        parts = zip(*(np.split(array, cuts) for array in found), strict=True)
        return [self._measured(rows, *part) for rows, part in zip(many, parts, strict=True)]

    def _unroll(self, policy: Policy, rows: _Rows) -> tuple[Array, Array]:
        assert rows.ended is not None
        state, found = rows.state, []
        for t, ended in enumerate(rows.ended):
            step = _map(rows, itemgetter(t))
            acted = policy.act(self._observations(step), state, None)
            state = recurrent.forget_rows(acted.state, np.flatnonzero(ended).tolist())
            found.append(self._divergences_of(acted.distribution, step))
        each, log_prob = zip(*found, strict=True)
        return np.concatenate(each), np.concatenate(log_prob)

    def _divergences(self, policy: Policy, rows: _Rows, state: Any) -> tuple[Array, Array] | None:
        """Row by row: the divergence, and the log-probability of the action under the newest."""
        acted = policy.act(self._observations(rows), state, None)
        if acted.state is not None:
            return None  # a single step of a recurrent policy, whose state is unknown
        return self._divergences_of(acted.distribution, rows)

    def _divergences_of(self, newest: Distribution | None, rows: _Rows) -> tuple[Array, Array]:
        if newest is None:
            raise NoDistributionError(
                "AdaptiveSync needs the distribution that actions are drawn from: return "
                "Acted(…, distribution=…) from act(), or use EveryVersion() or EveryNth(n)"
            )
        log_prob = newest.log_prob(join_leaves(self._action_space, rows.actions))
        if not rows.behaviour:
            return divergence_of_log_probs(rows.log_prob, log_prob), log_prob
        acted = newest.with_arrays(rows.behaviour)
        measure = getattr(acted, self._rule.measure)
        return measure(newest), log_prob

    def _observations(self, rows: _Rows) -> Any:
        return join_leaves(self._observation_space, rows.observations)

    def _measured(self, rows: _Rows, each: Array, log_prob: Array) -> Measured:
        weights = np.exp(np.clip(log_prob - rows.log_prob.reshape(-1), -30, 30))
        return Measured(
            rows.version,
            float(np.mean(each)),
            float(np.std(each) / np.sqrt(len(each))),
            float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())),
        )


def _map(rows: _Rows, pick: Callable[[Array], Array]) -> _Rows:
    return _Rows(
        rows.version,
        [pick(array) for array in rows.observations],
        [pick(array) for array in rows.actions],
        pick(rows.log_prob),
        {name: pick(array) for name, array in rows.behaviour.items()},
    )


def _join(many: Sequence[_Rows]) -> _Rows:
    def join(arrays: Iterable[Array]) -> Array:
        return np.concatenate(list(arrays))

    return _Rows(
        many[0].version,
        [join(leaf) for leaf in zip(*(rows.observations for rows in many), strict=True)],
        [join(leaf) for leaf in zip(*(rows.actions for rows in many), strict=True)],
        join(rows.log_prob for rows in many),
        {name: join(rows.behaviour[name] for rows in many) for name in many[0].behaviour},
    )
