"""Is ClusterEnv as fast as it was? An older commit and this tree, in turns, in one run.

    python benchmarks/before_and_after.py                        # everything: a quarter of an hour
    python benchmarks/before_and_after.py --before main --rounds 5
    python benchmarks/before_and_after.py --only step,rollout --envs CartPole,LunarLander

Each side has a process of its own with live envs, and a fresh one now and then. One side runs one
call for a second, then the other side does, and in the next round the other one goes first:
whatever else the machine does hits both. Results go to ``benchmarks/results/before_and_after``. The
exit status is 1 if a side failed.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import report
from before_and_after_report import START, Pair, publish
from checkouts import BEFORE, ROOT, Child, checkout_of, name_of
from fresh_process import MeasurementError
from leftovers import machine_cpu_seconds
from one_side import CALLS
from workloads import WORKLOADS

SIDES = ("before", "after")
EVERYBODY = "everybody"
# After it, the workers of the side that was measured last sleep.
PAUSE_S = 0.02
SLEEPS_BELOW = 0.05
Answer = dict[str, float]


@dataclass
class Waiting:
    """What a side does while the other one is measured; it should do nothing."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __str__(self) -> str:
        share = self.cpu_seconds / self.seconds if self.seconds else 0.0
        return f"{share:.3f}" + ("" if share < SLEEPS_BELOW else ": it did NOT sleep")


@dataclass
class Run:
    """What was measured, and what could not be."""

    options: argparse.Namespace
    pairs: list[Pair] = field(default_factory=list)
    missing: dict[tuple[str, str], str] = field(default_factory=dict)
    """(env, call) → why there are no numbers."""
    waiting: dict[str, Waiting] = field(default_factory=lambda: {s: Waiting() for s in SIDES})

    def measure_rounds(self, checkouts: dict[str, Path]) -> None:
        """All calls in all envs, round after round, now and then in fresh processes."""
        rounds, fresh_every = self.options.rounds, self.options.fresh_every
        for first in range(0, rounds, fresh_every):
            with ExitStack() as stack:
                children = {
                    side: stack.enter_context(Child("one_side.py", checkout))
                    for side, checkout in checkouts.items()
                }
                for number in range(first, min(first + fresh_every, rounds)):
                    for env in self.options.envs:
                        for call in self.options.only:
                            if call != START:
                                self._measure_round(children, env, call, number)

    def _measure_round(self, children: dict[str, Child], env: str, call: str, number: int) -> None:
        options = self.options
        question = {"env": env, "call": call, "seed": number}
        question |= {"seconds": options.seconds, "warmup_s": options.warmup}

        def measure(side: str) -> Answer:
            (other,) = set(SIDES) - {side}
            sleep(PAUSE_S)
            before, start = _cpu_seconds(children), monotonic()
            answer = children[side].ask(question, options.timeout)
            seconds, after = monotonic() - start, _cpu_seconds(children)
            used = {name: after[name] - before[name] for name in after}
            self.waiting[other].cpu_seconds += used[other]
            self.waiting[other].seconds += seconds
            others = used[EVERYBODY] - used[side] - used[other]
            return {**answer, "others": others / seconds / report.cores()}

        self._pair(env, call, number, measure)

    def measure_starts(self, checkouts: dict[str, Path]) -> None:
        """How long fresh processes take to their first reset; the first of each is not kept."""

        def measure(side: str) -> Answer:
            with Child("one_side.py", checkouts[side]) as child:
                return child.ask({"env": env, "call": START}, self.options.timeout)

        for number in range(-1, self.options.starts):
            for env in self.options.envs:
                self._pair(env, START, number, measure)

    def _pair(self, env: str, call: str, number: int, measure: Callable[[str], Answer]) -> None:
        """Both sides, one after the other; rounds below 0 are not kept."""
        if (env, call) in self.missing:
            return
        # In turns, and also who goes first in fresh processes.
        order = SIDES if (number + number // self.options.fresh_every) % 2 == 0 else SIDES[::-1]
        answers = {}
        for side in order:
            try:
                answers[side] = measure(side)
            except MeasurementError as error:
                self.missing[env, call] = why = f"failed ({side}): {error}"
                print(f"{env}, {call}: {why}", file=sys.stderr)
                return
        if number >= 0:
            self.pairs.append(Pair(env, call, number, order[0], **answers))
            print(self.pairs[-1], file=sys.stderr, flush=True)


def _cpu_seconds(children: dict[str, Child]) -> dict[str, float]:
    """CPU time so far: by side, and of the whole machine."""
    by_side = {side: child.cpu_seconds() for side, child in children.items()}
    return {EVERYBODY: machine_cpu_seconds(), **by_side}


def main() -> None:
    """Measure both sides, then print and save the tables."""
    options = _options()
    about = report.machine()
    del about["commit"]
    run = Run(options)
    _leave_out_what_is_not_installed(run)
    with checkout_of(options.before) as before:
        checkouts = {"before": before, "after": options.after.resolve()}
        about |= {f"commit {side}": name_of(checkout) for side, checkout in checkouts.items()}
        run.measure_rounds(checkouts)
        if START in options.only:
            run.measure_starts(checkouts)
    for side, waiting in run.waiting.items():
        about[f"share of one core that '{side}' took while the other side ran"] = str(waiting)
    settings = {name: value for name, value in vars(options).items() if name in SETTINGS}
    publish(run.pairs, run.missing, settings, about, options.results)
    if any(why.startswith("failed") for why in run.missing.values()):
        sys.exit(1)


SETTINGS = ("only", "envs", "rounds", "fresh_every", "starts", "seconds", "warmup")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--before", default=BEFORE, metavar="COMMIT", help="the older side")
    add("--after", type=Path, default=ROOT, metavar="FOLDER", help="by default this tree")
    add("--rounds", type=int, default=16, help="measurements of each side, env and call")
    add("--fresh-every", type=int, default=2, help="rounds after which both sides start anew")
    add("--starts", type=int, default=5, help="fresh processes of each side and env")
    add("--only", type=_chosen([*CALLS, START]), default=[*CALLS, START], metavar="CALL,…")
    add("--envs", type=_chosen(list(WORKLOADS)), default=list(WORKLOADS), metavar="ENV,…")
    add("--seconds", type=float, default=1.0, help="per measurement, after the warm-up")
    add("--warmup", type=float, default=0.2, help="seconds before each measurement")
    add("--timeout", type=float, default=120.0, help="seconds for one measurement with its start")
    add("--results", type=Path, default=report.RESULTS, help="folder for the results")
    return parser.parse_args()


def _chosen(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads ``a,b``: known names, or how they begin."""

    def chosen(text: str) -> list[str]:
        found = {one: [name for name in known if name.startswith(one)] for one in text.split(",")}
        for one, names in found.items():
            if not one or not names:
                raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(known)}")
        return [name for name in known if any(name in names for names in found.values())]

    return chosen


def _leave_out_what_is_not_installed(run: Run) -> None:
    missing = [name for name in ("ale_py", "cv2") if importlib.util.find_spec(name) is None]
    if "Pong" in run.options.envs and missing:
        why = f"skipped: no {' and no '.join(missing)}; pip install 'clusterenv[bench]'"
        print(f"Pong: {why}", file=sys.stderr)
        run.missing |= {("Pong", call): why for call in run.options.only}


if __name__ == "__main__":
    main()
