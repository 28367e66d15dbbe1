"""Does ClusterEnv give what it gave? Rollouts of an older commit and of this tree, bit by bit.

    python benchmarks/same_rollouts.py
    python benchmarks/same_rollouts.py --before main --worlds CartPole --layouts "1 worker"

Both sides get the same seeds and weights, under ``EveryVersion``: several rollouts with changed
weights between, then steps with fixed actions, with any number of workers and hosts. Each side
gives a SHA-256 of every array. There is a line per env and layout that names the first difference.
The exit status is 1 if there is any, or if a side failed.
"""

import argparse
import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from checkouts import BEFORE, ROOT, Child, checkout_of, name_of
from digest_worlds import WORLDS
from fresh_process import MeasurementError
from rollout_digests import LAYOUTS

Digests = dict[tuple[str, str], str]
"""(what was done, name of the array) → its type, shape and SHA-256."""


def main() -> None:
    """Compare both sides, and exit with what came of it."""
    options = _options()
    start = monotonic()
    if importlib.util.find_spec("torch") is None:
        print("TorchPolicy: skipped: no torch; pip install 'clusterenv[torch]'")
    with checkout_of(options.before) as before, ExitStack() as stack:
        checkouts = {"before": before, "after": options.after.resolve()}
        for side, checkout in checkouts.items():
            print(f"{side}: {name_of(checkout)}")
        comparison = Comparison(
            *(stack.enter_context(Child("rollout_digests.py", c)) for c in checkouts.values()),
            options.timeout,
        )
        for world in options.worlds:
            for layout in options.layouts:
                outcome = comparison.outcome(world, layout)
                print(f"{world:18s} {layout:31s} {outcome}", flush=True)
    print(
        f"{comparison.same:,} arrays are the same, {comparison.failures} of the lines above have a "
        f"difference; {monotonic() - start:.0f} s"
    )
    sys.exit(1 if comparison.failures else 0)


class Comparison:
    """Two sides that are asked for the same, and compared."""

    def __init__(self, before: Child, after: Child, timeout_s: float) -> None:
        self._before, self._after, self._timeout_s = before, after, timeout_s
        self._references: dict[tuple[str, str], Digests] = {}
        self.same = self.failures = 0

    def outcome(self, world: str, layout: str) -> str:
        """What to say about one env and layout."""
        reference = LAYOUTS[layout].reference or layout
        asked = {"world": world, "layout": layout}
        # Both sides work at once.
        self._after.send(asked)
        if (world, reference) not in self._references:
            self._before.send({"world": world, "layout": reference})
            before = self._receive(self._before)
            if isinstance(before, str):
                self._receive(self._after)
                self.failures += 1
                return f"failed before: {before}"
            self._references[world, reference] = before
        return self._judge(self._references[world, reference], self._receive(self._after))

    def _judge(self, before: Digests, after: Digests | str) -> str:
        if isinstance(after, str):
            self.failures += not after.startswith("skipped")
            return after
        difference = first_difference(before, after)
        if difference is None:
            self.same += len(after)
            return f"same ({len(after)} arrays)"
        self.failures += 1
        return difference

    def _receive(self, child: Child) -> Digests | str:
        try:
            answer = child.receive(self._timeout_s)
        except MeasurementError as error:
            return f"failed: {error}"
        if "skipped" in answer:
            return f"skipped: {answer['skipped']}"
        return {(what, name): digest for what, name, digest in answer["digests"]}


def first_difference(before: Digests, after: Digests) -> str | None:
    """The first array that is not the same on both sides, in words."""
    for what, name in [*before, *after]:
        old, new = before.get((what, name)), after.get((what, name))
        if old != new:
            return f"DIFFERENT in {what}: {name}: before {_short(old)}, after {_short(new)}"
    return None


def _short(digest: str | None) -> str:
    """Enough of a digest to tell it from another one."""
    if digest is None:
        return "there is none"
    array, _, sha = digest.rpartition(" ")
    return f"{array} {sha[:12]}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--before", default=BEFORE, metavar="COMMIT", help="the older side")
    add("--after", type=Path, default=ROOT, metavar="FOLDER", help="by default this tree")
    add("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    add("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    add("--timeout", type=float, default=60.0, help="seconds for one env and layout")
    return parser.parse_args()


if __name__ == "__main__":
    main()
