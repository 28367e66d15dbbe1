"""What ``image_bytes.py`` found: tables, ratios by round, and whether the floors were kept."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import report
from others import OTHERS_TAKE, verdict
from paired import Ratio, ratio_of

Row = dict[str, Any]
FREE, SLOW = "free", "100 Mbit/s"
LINKS = {FREE: "", SLOW: "100mbit"}
KINDS = {"coded": True, "raw": False}
# Of images.
FEWER_BYTES, OF_FREE, OF_RAW = 8.0, 0.9, 3.0
NOTES = f"""\
- Pong, 84 by 84 by 4 (ALE, standard preprocessing), 16 envs, fragments of 64 steps; LunarLander-v3,
  64 envs, fragments of 128; 376 floats of 8 bytes, smooth in time and a quarter of them zero, 64
  envs, fragments of 64. A policy that costs next to nothing; two hosts with one worker each, which
  share the machine's cores with the head.
- Raw: `Network(compress=False)`. Coded: the default; it decides itself whether coding pays.
- The link of each host is limited with `tbf` on its own side.
- Steps per second and bytes: medians over rounds in which all runs take turns. Ratios: of
  measurements of the same round, their median, and its 90 % interval by bootstrap.
- Bytes: those of `FragmentMade` on the socket, per env step, with rewards, actions and all else. An
  observation of Pong has 28,224.
- Not slower: the interval of the ratio reaches 1.
- Others: the share of all cores that other processes took meanwhile, the most of any measurement.
  Above {OTHERS_TAKE:.0%} there is no verdict.
"""


class Found:
    """The measurements of one env and call."""

    def __init__(self, rows: Sequence[Row], env: str, call: str) -> None:
        self._rows = [row for row in rows if (row["env"], row["call"]) == (env, call)]
        self.others = max(row["others"] for row in self._rows)

    def column(self, link: str, kind: str, what: str = "steps_per_s") -> list[float]:
        """In the order of the rounds."""
        fitting = (row for row in self._rows if (row["link"], row["kind"]) == (link, kind))
        return [row[what] for row in sorted(fitting, key=lambda row: row["round"])]

    def median(self, link: str, kind: str, what: str = "steps_per_s") -> str:
        """As the tables show it."""
        return f"{median(self.column(link, kind, what)):,.0f}"

    def ratio(self, before: tuple[str, str], after: tuple[str, str]) -> Ratio:
        """Of steps per second, round by round."""
        return ratio_of(self.column(*before), self.column(*after))

    def fewer_bytes(self) -> Ratio:
        """How many times as many bytes travel raw."""
        raw, coded = (self.column(FREE, kind, "bytes_per_step") for kind in ("raw", "coded"))
        return ratio_of(coded, raw)


def sections_of(rows: Sequence[Row]) -> dict[str, str]:
    """Tables and promises of what was measured."""
    cells = dict.fromkeys((row["env"], row["call"]) for row in rows)
    found = {cell: Found(rows, *cell) for cell in cells}
    images = {cell: one for cell, one in found.items() if one.column(SLOW, "raw")}
    floats = {cell: one for cell, one in found.items() if cell not in images}
    promises = [
        *(line for cell, one in images.items() for line in _image_promises(cell, one)),
        *(line for cell, one in floats.items() for line in _float_promises(cell, one)),
    ]
    sections = {}
    if images:
        sections["Images from two hosts"] = _image_table(images)
    if floats:
        sections["Floats from two hosts"] = _float_table(floats)
    promised = report.table(["", "promised", "measured", ""], promises)
    return sections | {"Promises": promised, "Notes": NOTES}


def _image_table(images: dict[tuple[str, str], Found]) -> str:
    head = ["", "bytes per step: raw", "coded", "steps/s: free, raw", "free, coded"]
    lines = [
        [
            f"{env}, `{call}`",
            *(one.median(FREE, kind, "bytes_per_step") for kind in ("raw", "coded")),
            *(one.median(link, kind) for link in LINKS for kind in ("raw", "coded")),
        ]
        for (env, call), one in images.items()
    ]
    return report.table([*head, "limited, raw", "limited, coded"], lines)


def _float_table(floats: dict[tuple[str, str], Found]) -> str:
    head = ["", "bytes per step: raw", "coded", "steps/s: raw", "coded", "coded / raw"]
    lines = [
        [
            f"{env}, `{call}`",
            *(one.median(FREE, kind, "bytes_per_step") for kind in ("raw", "coded")),
            *(one.median(FREE, kind) for kind in ("raw", "coded")),
            _text(one.ratio((FREE, "raw"), (FREE, "coded"))),
        ]
        for (env, call), one in floats.items()
    ]
    return report.table(head, lines)


def _image_promises(cell: tuple[str, str], found: Found) -> Iterator[list[str]]:
    name = f"{cell[0]}, `{cell[1]}`: "
    of_free = found.ratio((FREE, "coded"), (SLOW, "coded"))
    of_raw = found.ratio((SLOW, "raw"), (SLOW, "coded"))
    bytes_ratio = found.fewer_bytes()
    # Bytes do not depend on who else has the cores.
    floors = [
        ("bytes, raw / coded", bytes_ratio, FEWER_BYTES, 0.0),
        (f"speed coded, {SLOW} / free", of_free, OF_FREE, found.others),
        (f"speed at {SLOW}, coded / raw", of_raw, OF_RAW, found.others),
    ]
    for what, ratio, floor, others in floors:
        kept = verdict(ratio.median >= floor, others)
        yield [name + what, f"≥ {floor:g}", _text(ratio), kept]


def _float_promises(cell: tuple[str, str], found: Found) -> Iterator[list[str]]:
    ratio = found.ratio((FREE, "raw"), (FREE, "coded"))
    kept = verdict(ratio.high >= 1.0, found.others)
    yield [f"{cell[0]}, `{cell[1]}`: speed, coded / raw", "not slower", _text(ratio), kept]


def _text(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
