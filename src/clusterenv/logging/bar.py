"""The progress bar of a terminal: the one place of the logs that needs rich."""

from __future__ import annotations

try:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress
except ImportError as error:
    raise ImportError("a progress bar needs rich: pip install 'clusterenv[progress]'") from error


class Bar:
    """A bar with a text, drawn in one place; what is printed meanwhile appears above it."""

    def __init__(self, title: str, total_steps: int) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bar = RichProgress(*columns)
        self._task = self._bar.add_task(title, total=total_steps, text="")
        self._bar.start()

    def show(self, step: int, text: str) -> None:
        """So many steps are done."""
        self._bar.update(self._task, completed=step, text=text.strip())

    def close(self) -> None:
        """Leave the bar as it is, and give the terminal back."""
        self._bar.stop()
