"""Tables as data and as plain text: what `top` and `bench` show before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first ``text_columns`` are words, the others numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)
    """Lines below the table."""
    text_columns: int = 1


def as_text(table: Table) -> str:
    """The table for scripts, logs and terminals without colours."""
    lines = [table.headings, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headings))]
    drawn = [
        "  ".join(
            cell.ljust(width) if column < table.text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *drawn, *table.notes])


def short(number: float) -> str:
    """``12345678`` → ``12.3M``."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"
