"""Processes are killed at any moment of any call, and every row is checked against a model.

    make chaos-kills                                                # 5,000 kills, an hour
    python benchmarks/kills.py --kills 200
    python benchmarks/kills.py --add --minutes 10                   # go on with the last record

Workers get SIGKILL, SIGSEGV, SIGTERM or SIGSTOP, or end by themselves in the middle of a step; host
processes, too, where there are some. Every observation says which env it is of, in which episode
and step, and every reward and action follows from that, so that a row that was lost, doubled,
misplaced or made up is seen at once. Results go to ``benchmarks/results/kills``.
"""

import argparse
import faulthandler
import functools
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import report
from kill_model import Model, WrongRowError
from kill_world import NUM_ACTIONS, Diary, ShiftPolicy, shifted
from killer import Killer
from records import SUFFIX, read_record

from clusterenv import ClusterEnv, Limits, LocalLauncher, WorkerLostError

NUM_ENVS, BATCH_SIZE = 6, 2
LIMITS = Limits(
    step_timeout_s=5.0,
    restart_timeout_s=60.0,
    lease_s=10.0,
    max_restarts_per_minute=10**9,
    max_restarts=10**9,
    restart_backoff_s=1e-3,
)
# Nobody is replaced: the slots of whoever is lost go to the other hosts.
UNREPLACED = Limits(**{**asdict(LIMITS), "max_restarts": 0})
CRASH_SHARE = 2e-4
LONGEST_CALL_S = 300.0
ROUNDS_PER_SESSION = 20


@dataclass(frozen=True)
class Scene:
    """Where the envs run."""

    name: str
    num_workers: int
    hosts: int | None = None
    limits: Limits = LIMITS
    share: float = 0.45
    """Of all kills."""

    def open(self) -> ClusterEnv:
        """A new run."""
        return ClusterEnv(
            [functools.partial(Diary, CRASH_SHARE)] * NUM_ENVS,
            num_workers=self.num_workers,
            launcher=LocalLauncher(hosts=self.hosts),
            batch_size=BATCH_SIZE,
            limits=self.limits,
            min_hosts=None if self.hosts is None else 1,
        )

    @property
    def most_at_once(self) -> int:
        """How many may be killed in one round."""
        return 3 if self.redeals else 100

    @property
    def redeals(self) -> bool:
        """Whether slots move to other hosts."""
        return self.limits is UNREPLACED


SCENES = (
    Scene("shared memory", 3),
    Scene("2 hosts behind sockets", 4, 2),
    # A session is over after three of these.
    Scene("4 hosts, slots redealt", 4, 4, UNREPLACED, share=0.1),
)


@dataclass
class Tally:
    """What came of one kind of call in one scene."""

    call: str
    scene: str
    calls: int = 0
    kills: int = 0
    hosts: int = 0
    rows: int = 0
    asked_again: int = 0
    """Calls that said that a worker was lost, and that they are to be made again."""
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Round:
    """One kind of call, again and again, while processes are killed."""

    def __init__(
        self, envs: ClusterEnv, model: Model, killer: Killer, tally: Tally, most_kills: int
    ) -> None:
        self.envs, self._model, self._killer, self._tally = envs, model, killer, tally
        self._most_kills = most_kills
        self._random = random.Random(tally.calls)
        self._policy, self._shifts = ShiftPolicy(), {0: 0}

    def play(self) -> None:
        """From a reset until what was killed is replaced, and a little longer."""
        getattr(self, f"_{self._tally.call}")(self._random.randrange(10**6))

    def _while_killing(self, more: int = 3) -> Iterator[None]:
        """The calls to make."""
        self._killer.allow(self._most_kills)
        while self._killer.is_busy or more > 0:
            more -= not self._killer.is_busy
            faulthandler.dump_traceback_later(LONGEST_CALL_S, exit=True)
            self._tally.calls += 1
            yield
            # Replacements need the cores as well, and others too.
            time.sleep(self._random.choice([0.0, 0.0, 0.001, 0.01]))

    def _reset(self, seed: int) -> Any:
        self._model.note_reset(seed)
        observations, _ = self.envs.reset(seed=seed)
        self._model.judge_reset(range(NUM_ENVS), observations)
        return observations

    def _note(self, observations: Any) -> None:
        """Whose rows these are: they can be stopped as well as killed."""
        self._killer.at_work = set(observations[..., 1].astype(int).ravel().tolist())

    def _reset_(self, seed: int) -> None:
        for _ in self._while_killing():
            self._note(self._reset(seed))
            seed += 1

    def _step(self, seed: int) -> None:
        self._note(self._reset(seed))
        for _ in self._while_killing():
            actions = np.random.randint(0, NUM_ACTIONS, NUM_ENVS)
            step = self.envs.step(actions)
            self._model.judge_step(range(NUM_ENVS), actions, step)
            self._note(step[0])

    def _recv(self, seed: int) -> None:
        self._model.note_reset(seed)
        self.envs.async_reset(seed=seed)
        sent: dict[int, int] = {}
        for _ in self._while_killing(more=9):
            step = self.envs.recv()
            slots = step[-1]["env_id"].tolist()
            fresh = [row for row, slot in enumerate(slots) if slot not in sent]
            self._model.judge_reset([slots[row] for row in fresh], step[0][fresh])
            rows = [row for row, slot in enumerate(slots) if slot in sent]
            taken = [sent[slots[row]] for row in rows]
            self._model.judge_step([slots[row] for row in rows], taken, pick(rows, step))
            self._note(step[0])
            actions = np.random.randint(0, NUM_ACTIONS, len(slots))
            sent.update(zip(slots, actions.tolist(), strict=True))
            self.envs.send(actions, slots)
        # What is under way is abandoned.
        self._reset(seed)

    def _publish(self) -> int:
        if self._random.random() < 0.5:
            self._policy.shift = self._policy.shift + 1
        version = self.envs.publish(self._policy)
        self._shifts[version] = int(self._policy.shift[0])
        return version

    def _rollout(self, seed: int) -> None:
        self._collect(seed, {})

    def _rollout_of_some(self, seed: int) -> None:
        self._collect(seed, {"wait_num": NUM_ENVS // 2})

    def _collect(self, seed: int, options: dict[str, Any]) -> None:
        self._note(self._reset(seed))
        for _ in self._while_killing():
            version = self._publish()
            rollout = self.envs.rollout(self._policy, 5, **options)
            if not options and (rollout.versions != version).any():
                raise WrongRowError(f"{version} was to act, not {rollout.versions}")
            self._model.judge_fragment(rollout, self._shifts.__getitem__, is_gapless=True)
            self._note(rollout.observations)

    def _stream(self, seed: int) -> None:
        self._note(self._reset(seed))
        self._publish()
        fragments = self.envs.stream(5)
        for _ in self._while_killing(more=6):
            fragment = next(fragments)
            self._model.judge_fragment(fragment, self._shifts.__getitem__, is_gapless=True)
            self._publish()
        fragments.close()  # type: ignore[attr-defined]

    def _policy_step(self, seed: int) -> None:
        self._note(self._reset(seed))
        for _ in self._while_killing():
            self._publish()
            steps = self._model.steps()
            step = self.envs.step(self._policy)
            actions, versions = step[-1]["action"], step[-1]["version"]
            wanted = shifted(steps, [self._shifts[int(version)] for version in versions])
            if (actions != wanted)[versions > 0].any():
                raise WrongRowError(f"actions {actions} of versions {versions} at steps {steps}")
            self._model.judge_step(range(NUM_ENVS), actions, step)
            self._note(step[0])

    def _evaluate(self, seed: int) -> None:
        self._note(self._reset(seed))
        for _ in self._while_killing():
            try:
                played = self.envs.evaluate(self._policy, 3 * NUM_ENVS, seed=seed)
            except WorkerLostError:
                self._tally.asked_again += 1
                continue
            judge_evaluation(played, seed)
            self._model.rows += int(played.lengths.sum())


def pick(rows: list[int], step: Any) -> Any:
    """These rows of what `recv` gave."""
    *arrays, infos = step
    picked = {name: value[rows] for name, value in infos.items() if isinstance(value, np.ndarray)}
    return *(array[rows] for array in arrays), picked


def judge_evaluation(played: Any, seed: int) -> None:
    """Three episodes of each slot, one after the other, as long as they are in such an env."""
    for slot in range(NUM_ENVS):
        lengths = played.lengths[played.slots == slot].tolist()
        first = lengths[0] if lengths else 0
        if lengths != [3 + (first - 3 + number) % 6 for number in range(3)]:
            raise WrongRowError(f"slot {slot} played episodes of {lengths} steps with seed {seed}")


CALLS = ("step", "recv", "rollout", "rollout_of_some", "stream", "policy_step", "evaluate")
CALLS += ("reset_",)


@contextmanager
def _noting_stray_errors(note: Callable[[str], None]) -> Iterator[None]:
    """What is raised where nobody catches it is an error like any other."""
    before = threading.excepthook, sys.unraisablehook

    def stray(args: Any) -> None:
        note("".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)))

    threading.excepthook = sys.unraisablehook = stray
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


def play_session(
    scene: Scene, tallies: list[Tally], killer: Killer, wanted: int, deadline: float
) -> None:
    """Rounds of all kinds in one run, until something goes wrong or there were enough."""
    with scene.open() as envs:
        model = Model(envs, may_move=scene.redeals)
        for _ in range(ROUNDS_PER_SESSION):
            tally = min(tallies, key=lambda one: one.kills)
            if sum(one.kills for one in tallies) >= wanted or time.time() > deadline:
                return
            kills, hosts, rows = killer.total, killer.kills["host"], model.rows
            try:
                with _noting_stray_errors(tally.errors.append):
                    Round(envs, model, killer, tally, scene.most_at_once).play()
            except WorkerLostError:
                if not scene.redeals:
                    tally.errors.append(traceback.format_exc())
                return  # nobody is left
            except WrongRowError as error:
                tally.wrong.append(str(error))
                return
            except Exception:
                tally.errors.append(traceback.format_exc())
                return
            finally:
                faulthandler.cancel_dump_traceback_later()
                killer.calm_down()
                tally.kills += killer.total - kills
                tally.hosts += killer.kills["host"] - hosts
                tally.rows += model.rows - rows


def rows_of(tallies: list[Tally]) -> Iterator[tuple[str, ...]]:
    """The lines of the table."""
    for one in tallies:
        numbers = (one.calls, one.kills, one.hosts, one.rows, one.asked_again)
        found = len(one.wrong), len(one.errors)
        yield one.call.strip("_"), one.scene, *(f"{number:,}" for number in (*numbers, *found))


HEADER = ("call", "where", "calls", "kills", "of hosts", "rows", "asked again", "wrong", "errors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop earlier")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--add", action="store_true", help="go on where the last run stopped")
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    given = parser.parse_args()
    # Each loss is a warning, and there is nothing but losses.
    logging.getLogger("clusterenv").setLevel(logging.ERROR)
    machine, began = report.machine(), time.time()
    killer, tallies, before_s = begin(given.seed, given.results if given.add else None)
    killer.start()
    deadline = began + 60 * given.minutes
    while sum(one.kills for one in tallies) < given.kills and time.time() < deadline:
        for scene in SCENES:
            own = [one for one in tallies if one.scene == scene.name]
            wanted = int(scene.share * given.kills) + 1
            if sum(one.kills for one in own) < wanted:
                play_session(scene, own, killer, wanted, deadline)
                seconds = before_s + time.time() - began
                publish(tallies, killer, machine, seconds, given.results)
    killer.stop()


def begin(seed: int, folder: Path | None) -> tuple[Killer, list[Tally], float]:
    """A killer, what there is of results in this folder, and how many seconds that took."""
    killer, tallies = Killer(seed), [Tally(call, s.name) for s in SCENES for call in CALLS]
    if folder is None:
        return killer, tallies, 0.0
    record = read_record(folder / "kills" / f"{report.cores()}cores{SUFFIX}")
    killer.kills.update(record["kills"])
    return killer, [Tally(**one) for one in record["tallies"]], record["seconds"]


def publish(
    tallies: list[Tally], killer: Killer, machine: Any, seconds: float, folder: Path
) -> None:
    """Print and save what came of it."""
    done = (
        f"{killer.total:,} processes were ended in {seconds:,.0f} s at random moments: "
        f"{killer.kills['worker']:,} workers ({killer.kills['at work']:,} of them at work, the "
        f"others while they started or were being replaced) and {killer.kills['host']:,} hosts; "
        + ", ".join(f"{killer.kills[name]:,} with {name}" for name in SIGNAL_NAMES)
        + f". Beyond these, an env ended its process by itself in {CRASH_SHARE:.2%} of all steps. "
        f"{NUM_ENVS} envs; every row was checked against a model that follows each env."
    )
    sections = {
        "What was done": done,
        "What came of it": report.table(HEADER, rows_of(tallies)),
        "Machine": report.facts(machine),
    }
    if bad := [text for one in tallies for text in (*one.wrong, *one.errors)]:
        sections["What was wrong"] = "\n".join(f"```\n{text}\n```" for text in bad)
    numbers = {"machine": machine, "seconds": seconds, "kills": dict(killer.kills)}
    numbers["tallies"] = [asdict(one) for one in tallies]
    report.publish("kills", sections, numbers, None, folder)


SIGNAL_NAMES = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGSTOP")

if __name__ == "__main__":
    main()
