"""Tables in colour, live and as pictures: the one place that needs rich."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clusterenv.tools.tables import Table

try:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text
except ImportError as error:
    raise ImportError(
        "a live view needs rich: pip install 'clusterenv[top]'; `top --once` does without"
    ) from error

_COLOURS = {
    "ready": "green",
    "ordered": "yellow",
    "joining": "yellow",
    "leaving": "red",
    "lost": "red",
}


def draw(table: Table) -> RenderableType:
    """A table in colour."""
    drawn = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column, heading in enumerate(table.headings):
        is_text = column < table.text_columns
        drawn.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(cell, _COLOURS.get(cell, "")) for cell in row))
    return Group(Text(table.title, "bold"), drawn, *(Text(note, "dim") for note in table.notes))


def show_live(tables: Iterable[Table]) -> None:
    """Draw each table in place of the one before, until there are no more."""
    with Live(screen=False, auto_refresh=False) as live:
        for table in tables:
            live.update(draw(table), refresh=True)


def save_picture(tables: Iterable[Table], title: str, file: Path, width: int = 110) -> None:
    """Save what a terminal would show as an SVG."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True)
        for table in tables:
            console.print(draw(table))
        console.save_svg(str(file), title=title)
