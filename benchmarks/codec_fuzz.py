"""A million damaged frames of coded observations: each is read or refused, and memory stays flat.

    python benchmarks/codec_fuzz.py                              # some minutes on one core
    python benchmarks/codec_fuzz.py --count 20_000 --seed 7 --folder /tmp

A host sends observations of a Dict space, stacks of frames and others, coded as hosts code them.
Something happens to each on the way: bytes change, frames are cut, lengthened or exchanged, what
was compressed is damaged inside, headers lie, bombs arrive. The head checks and reads them as it
does in a run. Results go to ``benchmarks/results/codec_fuzz``.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import report
from codec_damages import BOMB_BYTES, NUM_SLOTS, NUM_STEPS, SPACE, Sent, corpus, damages
from gymnasium.spaces import Discrete

from clusterenv.errors import ProtocolError
from clusterenv.plain.spaces import leaves_of
from clusterenv.wire.observation_codec import read_coded
from clusterenv.wire.reply_checks import ReplyChecks

GROWTH_MB = 4.0
"""By how much memory may have grown at the end, and PEAK_MB meanwhile: a bomb is larger."""
PEAK_MB = 16.0
WARM_UP = 2_000


class Head:
    """Reads what arrives as the head of a run does, and counts what came of it."""

    def __init__(self) -> None:
        # Coded observations are checked by their space alone.
        published: Any = None
        self._checks = ReplyChecks(SPACE, Discrete(2), published)

    def read(self, sent: Sent) -> str:
        """Why it was refused, or that it was read; AssertionError at arrays nobody expects."""
        try:
            dtype = self._checks.kind_of_coded(
                sent.coding.name, sent.dtype, sent.shape, NUM_STEPS, NUM_SLOTS
            )
            array = read_coded(sent.coding, sent.shape, dtype, sent.frame)
        except ProtocolError as error:
            return _reason(error)
        assert (array.shape, array.dtype) == (sent.shape, dtype)
        return "read"


def _reason(error: ProtocolError) -> str:
    """The kind of error: what it says, without its values."""
    text = re.sub(r"'[^']*'|\([^)]*\)|b?\"[^\"]*\"|-?\d+", "…", str(error))
    return text if len(text) < 90 else f"{text[:90]}…"


@dataclass
class Outcome:
    """What came of all that was sent."""

    count: int = 0
    seconds: float = 0.0
    by_damage: Counter[tuple[str, bool]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory_mb: dict[str, float] = field(default_factory=dict)

    @property
    def is_flat(self) -> bool:
        """Whether memory has stayed what it was."""
        before, after, peak = (self.memory_mb[name] for name in ("before", "after", "peak"))
        return after - before <= GROWTH_MB and peak - before <= PEAK_MB


def fuzz(count: int, seed: int) -> Outcome:
    """Send so many damaged frames, and read them all."""
    head, outcome = Head(), Outcome()
    stream = damaged(seed)
    for _ in range(min(WARM_UP, count)):
        _try(head, *next(stream), Outcome())
    _forget_peak()
    outcome.memory_mb["before"] = _status_mb("VmRSS")
    began = perf_counter()
    for _ in range(count):
        _try(head, *next(stream), outcome)
    outcome.seconds = perf_counter() - began
    outcome.memory_mb |= {"after": _status_mb("VmRSS"), "peak": _status_mb("VmHWM")}
    return outcome


def damaged(seed: int) -> Iterator[tuple[str, Sent]]:
    """What was done, and what arrives, for ever."""
    chance, sent = random.Random(seed), corpus(seed)
    kinds = damages()
    weights = [weight for _, _, weight in kinds]
    while True:
        ((name, damage, _),) = chance.choices(kinds, weights)
        yield name, damage(chance.choice(sent), chance.choice(sent), chance)


def _try(head: Head, damage: str, sent: Sent, outcome: Outcome) -> None:
    outcome.count += 1
    try:
        reason = head.read(sent)
    except Exception as error:
        if len(outcome.failures) < 10:
            told = f"{type(error).__name__}: {error}; {sent.coding}, {sent.dtype}, {sent.shape}"
            outcome.failures.append(f"{damage}: {told}, {sent.frame.hex():.400}")
        reason = f"NOT CLEAN: {type(error).__name__}"
    outcome.by_damage[damage, reason == "read"] += 1
    outcome.reasons[reason] += 1


def _status_mb(entry: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:")) / 1024


def _forget_peak() -> None:
    """From now on VmHWM is the most since now."""
    Path("/proc/self/clear_refs").write_text("5")


# The report.


def sections_of(outcome: Outcome, seed: int) -> dict[str, str]:
    """What was found, as tables."""
    memory = ", ".join(f"{name} {mb:.1f} MiB" for name, mb in outcome.memory_mb.items())
    unclean = sum(n for reason, n in outcome.reasons.items() if reason.startswith("NOT CLEAN"))
    facts = {
        "damaged frames": f"{outcome.count:,}, seed {seed}",
        "rate": f"{outcome.count / outcome.seconds:,.0f} per second, damaging included",
        "errors other than `ProtocolError`": f"{unclean:,}: {'missed' if unclean else 'kept'}",
        "resident memory": f"{memory}: {'flat' if outcome.is_flat else 'IT GREW'}",
    }
    kinds = [
        [name, f"{outcome.by_damage[name, True]:,}", f"{outcome.by_damage[name, False]:,}"]
        for name in dict.fromkeys(name for name, _ in sorted(outcome.by_damage))
    ]
    errors = (item for item in outcome.reasons.most_common() if item[0] != "read")
    reasons = [[reason, f"{count:,}"] for reason, count in errors]
    return {
        "Outcome": report.facts(facts),
        "By damage": report.table(["damaged", "read", "refused"], kinds),
        "By error": report.table(["`ProtocolError`", "times"], reasons),
        "Notes": NOTES,
        "Machine": report.facts(report.machine()),
    }


ROWS = NUM_SLOTS * (NUM_STEPS + 1)
LARGEST_BYTES = ROWS * max(
    int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves_of(SPACE) if leaf.dtype
)
NOTES = f"""\
- Read: an array of the dtype and shape that the head had asked for. Its values may be others:
  what travels is authenticated, and a host may send any values that it likes anyway.
- No array that the head expects has more than {LARGEST_BYTES:,} bytes. Bombs would be
  {BOMB_BYTES >> 20} MiB. Memory may have grown by {GROWTH_MB:g} MiB at the end and by {PEAK_MB:g}
  MiB meanwhile; it is measured after {WARM_UP:,} frames that do not count.
"""


def main() -> None:
    """Send, and write the record; status 1 where something was not clean, or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=report.RESULTS, help="for the results")
    args = parser.parse_args()
    outcome = fuzz(args.count, args.seed)
    numbers = {
        "machine": report.machine(),
        "seed": args.seed,
        "count": outcome.count,
        "seconds": outcome.seconds,
        "memory_mb": outcome.memory_mb,
        "reasons": dict(outcome.reasons),
        "failures": outcome.failures,
    }
    sections = sections_of(outcome, args.seed)
    report.publish("codec_fuzz", sections, numbers, None, args.folder)
    if outcome.failures or not outcome.is_flat:
        sys.exit("\n".join(outcome.failures) or "memory grew")


if __name__ == "__main__":
    main()
